"""The package's structs and constants are those of mercurystack/mercury.h, as a C compiler sees them.

usage: structs_test.py PACKAGE_FOLDER LIBRARY CC INCLUDE_FOLDER
"""
import os
import re
import subprocess
import sys
import tempfile
import unittest

PACKAGE, LIBRARY, CC, INCLUDE = sys.argv[1:5]
del sys.argv[1:5]
sys.path.insert(0, PACKAGE)
os.environ["MERCURY_LIBRARY"] = LIBRARY

from mercurystack import _native  # noqa: E402

CONSTANTS = {
    "MERCURY_DTYPE_F32": _native.F32, "MERCURY_DTYPE_F64": _native.F64, "MERCURY_DTYPE_F16": _native.F16,
    "MERCURY_DTYPE_BF16": _native.BF16, "MERCURY_DTYPE_I32": _native.I32, "MERCURY_DTYPE_I64": _native.I64,
    "MERCURY_DTYPE_I8": _native.I8, "MERCURY_DTYPE_U8": _native.U8, "MERCURY_REDUCE_MIN": _native.MIN,
    "MERCURY_REDUCE_MAX": _native.MAX, "MERCURY_OPERATION_BROADCAST": _native.BROADCAST,
    "MERCURY_OPERATION_ALL_GATHER": _native.ALL_GATHER,
    "MERCURY_REDUCE_SUM": _native.SUM, "MERCURY_REDUCE_AVERAGE": _native.AVERAGE,
    "MERCURY_ROLE_WORKER": _native.ROLE_WORKER, "MERCURY_ROLE_SERVER": _native.ROLE_SERVER,
    "MERCURY_MODE_AUTO": _native.MODE_AUTO, "MERCURY_MODE_DAEMON": _native.MODE_DAEMON,
    "MERCURY_MODE_EMBEDDED": _native.MODE_EMBEDDED, "MERCURY_OPERATION_PUSH_PULL": _native.PUSH_PULL,
    "MERCURY_OPERATION_PUSH": _native.PUSH, "MERCURY_OPERATION_PULL": _native.PULL,
    "MERCURY_DEFAULT_PRIORITY": -1,
}


def printed(expressions):
    """What a C program prints for each, as numbers."""
    lines = "".join(f'  printf("%lld\\n", (long long)({expression}));\n' for expression in expressions)
    source = f"#include <mercurystack/mercury.h>\n#include <stdio.h>\nint main(void) {{\n{lines}  return 0;\n}}\n"
    with tempfile.TemporaryDirectory(prefix="mercury-") as folder:
        path = os.path.join(folder, "facts")
        subprocess.run([CC, "-std=c11", f"-I{INCLUDE}", "-x", "c", "-", "-o", path], input=source, text=True, check=True)
        return [int(line) for line in subprocess.run([path], stdout=subprocess.PIPE, text=True, check=True).stdout.split()]


class Structs(unittest.TestCase):
    def test_fields_lie_where_c_has_them(self):
        for name, struct in _native.STRUCTS.items():
            fields = [field for field, _ in struct._fields_]
            facts = printed([f"sizeof({name})"] + [f"offsetof({name}, {field})" for field in fields] +
                            [f"sizeof((({name} *)0)->{field})" for field in fields])
            self.assertEqual(facts[0], _native.ctypes.sizeof(struct), name)
            for field, offset, size in zip(fields, facts[1:], facts[1 + len(fields):]):
                mine = getattr(struct, field)
                self.assertEqual((mine.offset, mine.size), (offset, size), f"{name}.{field}")

    def test_no_field_and_no_struct_is_missing(self):
        with open(os.path.join(INCLUDE, "mercurystack/mercury.h"), encoding="utf-8") as file:
            header = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S)
        found = dict((name, body) for body, name in re.findall(r"typedef struct \{([^}]*)\} (\w+);", header))
        self.assertEqual(set(found), set(_native.STRUCTS))
        for name, body in found.items():
            fields = re.findall(r"(\w+)(?:\[\d+\])?;", body)
            self.assertEqual(fields, [field for field, _ in _native.STRUCTS[name]._fields_], name)

    def test_constants(self):
        self.assertEqual(printed(CONSTANTS), list(CONSTANTS.values()))


if __name__ == "__main__":
    unittest.main()
