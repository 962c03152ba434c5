"""Turns a file into a C++ header: embed.py FILE HEADER NAME."""
import sys

source, header, name = sys.argv[1:]
with open(source, "rb") as file:
    data = file.read()
with open(header, "w", encoding="ascii") as file:
    file.write("#pragma once\n\n#include <cstdint>\n\nnamespace mercury::ethdev {\n\n")
    file.write(f"inline constexpr uint8_t {name}[] = {{\n")
    for at in range(0, len(data), 20):
        file.write("  " + ",".join(str(byte) for byte in data[at:at + 20]) + ",\n")
    file.write("};\n\n}  // namespace mercury::ethdev\n")
