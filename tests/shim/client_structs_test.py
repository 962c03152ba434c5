"""Programs built with another header than the library's: one whose structs are two fields longer (a
newer one), one whose structs are two fields shorter (an older one), and the previous ones themselves,
which client_headers/ keeps as they were: the first whose surface is as it stays, and from each release
on that release's. Each calls every function that takes a struct.

usage: client_structs_test.py HEADERS LIBRARY SANITIZERS
"""
import glob
import os
import random
import re
import subprocess
import sys
import tempfile
import unittest

HEADERS, LIBRARY, SANITIZERS = sys.argv[1:4]
STRUCTS = {"mercury_attach_options", "mercury_job_options", "mercury_tensor_options", "mercury_completion",
           "mercury_contributors", "mercury_job_stats", "mercury_operation"}
PREVIOUS = sorted(glob.glob(os.path.join(os.path.dirname(os.path.abspath(__file__)), "client_headers", "*.h.txt")))
NEVER_SHORTER = "mercury_tensor_options"  # without its data a tensor is none

PROGRAM = r"""
#include <mercurystack/mercury.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* What the library fills of a struct, what it may not touch behind it, and what the header added. */
#if defined(LONGER)
#define FILLED(type) (sizeof(type) - 16)
#define ADDED(object) ((object).added_a | (object).added_b)
#define ADD(object) (object).added_b = 1
#else
#define FILLED(type) sizeof(type)
#define ADDED(object) 0
#define ADD(object) (void)(object)
#endif
#define GUARDED(type, name) struct { type it[2]; unsigned char behind[256]; } name; memset(&name, 0xa5, sizeof name)

static int failures;
#define CHECK(what) do { if (!(what)) { ++failures; \
  printf("line %d: %s; last error: %s\n", __LINE__, #what, mercury_last_error()); } } while (0)
#define INTACT(name) CHECK(intact(name.behind, sizeof name.behind))
static int intact(const unsigned char *bytes, size_t count) {
  for (size_t i = 0; i < count; ++i) if (bytes[i] != 0xa5) return 0;
  return 1;
}

static const char *address;

static void open_as(mercury_role role, mercury_context **context, mercury_job **job) {
  GUARDED(mercury_attach_options, attach);
  CHECK(mercury_attach_options_init(attach.it, sizeof attach.it[0]) == 0);
  CHECK(((const unsigned char *)&attach.it[1])[0] == 0xa5);
  attach.it[0].mode = MERCURY_MODE_EMBEDDED;
#ifdef LONGER
  ADD(attach.it[0]);
  CHECK(mercury_attach(attach.it, context) == -EINVAL);
  attach.it[0].added_b = 0;
#endif
  CHECK(mercury_attach(attach.it, context) == 0);
  INTACT(attach);

  GUARDED(mercury_job_options, options);
  CHECK(mercury_job_options_init(options.it, sizeof options.it[0]) == 0);
  CHECK(options.it[0].size == sizeof options.it[0] && options.it[0].rank == -1 && ADDED(options.it[0]) == 0);
  if (role == MERCURY_ROLE_WORKER) CHECK(mercury_job_options_from_env(options.it) == 0);
  CHECK(((const unsigned char *)&options.it[1])[0] == 0xa5);
  options.it[0].name = "structs";
  options.it[0].role = role;
  options.it[0].workers = options.it[0].servers = 1;
  options.it[0].rendezvous = address;
#ifdef LONGER
  ADD(options.it[0]);
  CHECK(mercury_job_open(*context, options.it, job) == -EINVAL);
  options.it[0].added_b = 0;
#endif
  CHECK(mercury_job_open(*context, options.it, job) == 0);
  INTACT(options);
}

static void *serve(void *unused) {
  mercury_context *context = NULL;
  mercury_job *job = NULL;
  open_as(MERCURY_ROLE_SERVER, &context, &job);
  CHECK(mercury_job_wait_end(job, MERCURY_FOREVER) == 0);
  mercury_job_close(job);
  mercury_detach(context);
  return unused;
}

static void declare(mercury_context *context, mercury_job *job) {
  void *memory = NULL;
  CHECK(mercury_alloc(context, 8192, &memory) == 0);
  GUARDED(mercury_tensor_options, tensors);
  for (int i = 0; i < 2; ++i) {
    CHECK(mercury_tensor_options_init(&tensors.it[i], sizeof tensors.it[i]) == 0);
    tensors.it[i].id = 10 + (unsigned)i;
    tensors.it[i].numel = 1024;
    tensors.it[i].data = (char *)memory + 4096 * i;
  }
#ifdef LONGER
  ADD(tensors.it[1]);
  CHECK(mercury_declare(job, tensors.it, 2) == -EINVAL);
  tensors.it[1].added_b = 0;
#endif
  CHECK(mercury_declare(job, tensors.it, 2) == 0);
  INTACT(tensors);
}

static void poll(mercury_job *job) {
  GUARDED(mercury_operation, operations);
  for (unsigned i = 0; i < 2; ++i) {
    CHECK(mercury_operation_init(&operations.it[i], sizeof operations.it[i]) == 0);
    operations.it[i].tensor = 10 + i;
#ifndef SHORTER
    operations.it[i].user_data = 77 + i;
#endif
  }
#ifdef LONGER
  ADD(operations.it[1]);
  CHECK(mercury_submit(job, operations.it, 2) == -EINVAL);
  operations.it[1].added_b = 0;
#endif
  CHECK(mercury_submit(job, operations.it, 2) == 0);
  INTACT(operations);
  GUARDED(mercury_completion, done);
  int n = 0;
  do {
    int more = mercury_poll(job, done.it + n, 2 - (size_t)n, sizeof done.it[0]);
    CHECK(more >= 0);
    if (more < 0) return;
    n += more;
  } while (n < 2);
  for (int i = 0; i < 2; ++i) {
    CHECK(done.it[i].size == FILLED(mercury_completion) && ADDED(done.it[i]) == 0);
    CHECK(done.it[i].status == 0);
    CHECK(done.it[i].round == 1);
#ifndef SHORTER
    CHECK(done.it[i].handle == operations.it[done.it[i].tensor - 10].handle);
    CHECK(done.it[i].user_data == 67u + done.it[i].tensor && done.it[i].message == NULL);
#endif
  }
  INTACT(done);
  CHECK(mercury_poll(job, done.it, 1, 0) == -EINVAL);
  CHECK(mercury_poll(job, done.it, 1, (size_t)-1) == -EINVAL);
}

static void called(const mercury_completion *done, void *user) {
  CHECK(done->status == 0 && done->tensor == 10);
#ifdef LONGER /* what was added is not there, and the program can see that */
  CHECK(done->size < sizeof *done);
#else
  CHECK(done->size >= sizeof *done);
#endif
  ++*(int *)user;
}

static void ask(mercury_job *job) {
  GUARDED(mercury_contributors, contributors);
  CHECK(mercury_tensor_get_contributors(job, 10, contributors.it) == -EINVAL);
  contributors.it[0].size = 8;
  CHECK(mercury_tensor_get_contributors(job, 10, contributors.it) == -EINVAL);
  contributors.it[0].size = sizeof contributors.it[0];
  CHECK(mercury_tensor_get_contributors(job, 10, contributors.it) == 0);
  CHECK(contributors.it[0].size == FILLED(mercury_contributors) && ADDED(contributors.it[0]) == 0);
  CHECK(contributors.it[0].round == 2 && contributors.it[0].workers == 1);
#ifndef SHORTER
  CHECK(contributors.it[0].in_all[0] == 1 && contributors.it[0].in_any[3] == 0);
#endif
  CHECK(((const unsigned char *)&contributors.it[1])[0] == 0xa5);
  INTACT(contributors);

  GUARDED(mercury_job_stats, stats);
  CHECK(mercury_job_get_stats(job, stats.it) == -EINVAL);
  stats.it[0].size = 8;
  CHECK(mercury_job_get_stats(job, stats.it) == -EINVAL);
  stats.it[0].size = sizeof stats.it[0];
  CHECK(mercury_job_get_stats(job, stats.it) == 0);
  CHECK(stats.it[0].size == FILLED(mercury_job_stats) && ADDED(stats.it[0]) == 0);
  CHECK(stats.it[0].operations == 3);
#ifndef SHORTER
  CHECK(stats.it[0].bytes_pushed == 3 * 4096 && stats.it[0].bytes_pulled == 3 * 4096);
#endif
  CHECK(((const unsigned char *)&stats.it[1])[0] == 0xa5);
  INTACT(stats);
}

int main(int argc, char **argv) {
  address = argv[argc - 1];
  pthread_t server;
  if (pthread_create(&server, NULL, serve, NULL) != 0) return 2;
  mercury_context *context = NULL;
  mercury_job *job = NULL;
  open_as(MERCURY_ROLE_WORKER, &context, &job);
  declare(context, job);
  poll(job);
  int calls = 0;
  CHECK(mercury_job_set_callback(job, called, &calls) == 0);
  mercury_handle handle = 0;
  CHECK(mercury_push_pull(job, 10, 0, &handle) == 0);
  CHECK(mercury_wait(job, handle, MERCURY_FOREVER) == 0);
  CHECK(calls == 1);
  ask(job);
  mercury_job_close(job);
  pthread_join(server, NULL);
  mercury_detach(context);
  return failures != 0;
}
"""


def changed(header, change):
    """The header with change(name, fields) instead of each struct's fields."""
    found = []

    def struct(match):
        found.append(match.group(2))
        fields = re.sub(r"/\*.*?\*/", "", match.group(1), flags=re.S).split(";")
        fields = [field.strip() for field in fields if field.strip()]
        return f"typedef struct {{\n  {'; '.join(change(match.group(2), fields))};\n}} {match.group(2)};"

    text = re.sub(r"typedef struct \{\n(.*?)\n\} (mercury_\w+);", struct, header, flags=re.S)
    if set(found) != STRUCTS:
        raise AssertionError(f"mercury.h has the structs {found}: this test must call what takes each")
    return text


def longer(_, fields):
    return [*fields, "uint64_t added_a", "uint64_t added_b"]


def shorter(name, fields):
    return fields if name == NEVER_SHORTER else fields[:-2]


def read(path):
    with open(path) as file:
        return file.read()


def write_program(folder, header, program):
    os.mkdir(f"{folder}/mercurystack")
    for path, text in (("mercurystack/mercury.h", header), ("program.c", program)):
        with open(f"{folder}/{path}", "w") as file:
            file.write(text)


def sizes(header):
    """Bytes of each struct."""
    prints = "".join(f'printf("%zu ", sizeof({name}));' for name in sorted(STRUCTS))
    with tempfile.TemporaryDirectory(prefix="mercury-") as folder:
        write_program(folder, header, "#include <mercurystack/mercury.h>\n#include <stdio.h>\n"
                      f"int main(void) {{ {prints} }}")
        subprocess.run(["cc", f"-I{folder}", f"{folder}/program.c", "-o", f"{folder}/program"], check=True)
        said = subprocess.run([f"{folder}/program"], check=True, capture_output=True, text=True).stdout
    return [int(size) for size in said.split()]


class StructsTest(unittest.TestCase):
    header = read(os.path.join(HEADERS, "mercurystack", "mercury.h"))

    def check(self, change, *flags):
        self.check_with(changed(self.header, change), *flags)

    def check_with(self, header, *flags):
        with tempfile.TemporaryDirectory(prefix="mercury-") as folder:
            write_program(folder, header, PROGRAM)
            sanitizers = [] if SANITIZERS == "none" else [f"-fsanitize={SANITIZERS}"]
            subprocess.run(["cc", "-std=gnu11", "-g", "-pthread", "-Wall", "-Wextra", "-Werror",
                            "-Wno-missing-field-initializers", *sanitizers, *flags, f"-I{folder}",
                            f"{folder}/program.c", LIBRARY, f"-Wl,-rpath,{os.path.dirname(LIBRARY)}", "-o",
                            f"{folder}/program"], check=True)
            address = f"127.{random.randrange(1, 255)}.{random.randrange(256)}.{random.randrange(1, 255)}"
            inherited = {name: value for name, value in os.environ.items() if not name.startswith("MERCURY_")}
            done = subprocess.run([f"{folder}/program", f"{address}:7470"], env={**inherited, "MERCURY_WORKERS": "1"},
                                  capture_output=True, text=True, timeout=100)
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)

    def test_this_header(self):
        self.check(lambda _, fields: fields)

    def test_a_newer_header(self):
        self.check(longer, "-DLONGER")

    def test_an_older_header(self):
        self.check(shorter, "-DSHORTER")

    def test_previous_headers(self):
        self.assertTrue(PREVIOUS)
        now = sizes(self.header)
        for path in PREVIOUS:
            with self.subTest(os.path.basename(path)):
                header = read(path)
                self.assertEqual(changed(header, lambda _, fields: fields).count("typedef struct {"), len(STRUCTS))
                before = sizes(header)
                self.assertTrue(all(old <= new for old, new in zip(before, now)), (before, now))
                self.check_with(header)
        # Else none of them tells more than the header itself.
        self.assertTrue(any(sizes(read(path)) != now for path in PREVIOUS))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
