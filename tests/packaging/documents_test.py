"""What is installed beside programs and library: the documents, and Wireshark's dissector.

usage: documents_test.py SOURCE BUILD
"""
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE, BUILD = sys.argv[1:3]


class DocumentsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="mercury-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        # From meson's own list, as other tests install beside this one.
        plan = subprocess.run(["meson", "introspect", "--installed", BUILD], capture_output=True, text=True, check=True)
        self.installed = {}  # by what it is made from
        for source, target in json.loads(plan.stdout).items():
            for root, _, names in os.walk(source):
                for name in names:
                    path = os.path.join(root, name)
                    self.installed[os.path.realpath(path)] = os.path.join(target, os.path.relpath(path, source))
            self.installed.setdefault(os.path.realpath(source), target)

    def target(self, path):
        self.assertIn(os.path.realpath(f"{SOURCE}/{path}"), self.installed)
        return self.installed[os.path.realpath(f"{SOURCE}/{path}")]

    def test_documents_are_there_and_lead_to_each_other(self):
        documents = sorted(glob.glob(f"{SOURCE}/docs/*.md"))
        self.assertGreater(len(documents), 5)
        for path in documents:
            target = self.target(os.path.relpath(path, SOURCE))
            self.assertTrue(target.endswith("/share/doc/mercurystack/" + os.path.basename(path)), target)
            with open(path) as file:
                for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", file.read()):
                    if not link.startswith("../"):  # the sources', which are not installed
                        self.target(f"docs/{link}")

    def test_wireshark_reads_a_capture_with_the_dissector(self):
        target = self.target("tools/wireshark/mercury.lua")
        self.assertTrue(target.endswith("/share/mercurystack/mercury.lua"), target)
        with open(f"{SOURCE}/docs/operations.md") as file:
            self.assertTrue("/usr/local/share/mercurystack/mercury.lua" in file.read(), "operations.md does not name it")
        if not shutil.which("tshark"):
            self.skipTest("no tshark here")
        with open(f"{self.folder}/small.csv", "w") as file:
            file.write("layer_index,name,numel,dtype,forward_pass_ns,backward_pass_ns,priority\n0,a,100,f32,1000,1000,0\n")
        subprocess.run([f"{BUILD}/apps/sim/mercury-sim", "--trace", f"{self.folder}/small.csv", "--policy", "mercury",
                        "--bandwidth", "10Gbps", "--payload", "--pcap", f"{self.folder}/small.pcap"], capture_output=True, check=True)
        # As a plugin of the user's: a link to what is installed.
        plugins = f"{self.folder}/.local/lib/wireshark/plugins"
        os.makedirs(plugins)
        os.symlink(f"{SOURCE}/tools/wireshark/mercury.lua", f"{plugins}/mercury.lua")
        shown = subprocess.run(["tshark", "-r", f"{self.folder}/small.pcap", "-Y", "mercury"], capture_output=True, text=True,
                               check=True, env=os.environ | {"HOME": self.folder})
        self.assertIn("MERCURY", shown.stdout.upper())


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
