"""Classes have at most 25 methods and 15 fields; the few larger ones are in a table here, with the reason."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from tests.support.cpp_classes import CppClass, classes_in

NATIVE = Path(__file__).resolve().parents[2] / "native"
PACKAGE = Path(__file__).resolve().parents[2] / "src" / "farandole"
MOST_METHODS, MOST_FIELDS = 25, 15
LARGE = {
    "control/agent/agent.py: Agent": "owns one object for each thing that an agent does, and passes messages to them",
    "control/agent/launcher_connection.py: LauncherConnection": "half of its fields belong to the present launcher",
    "worker/collectives/front_end.py: FrontEnd": "a method for each thing in which frameworks differ",
    "worker/core/engine.py: Engine": "a method for each function of the C ABI that concerns an engine",
    "worker/core/session.py: Session": "opens, connects and closes the parts that all front ends share",
    "control/launcher/agents/agent_client.py: AgentClient": "a field for each fact known of the agent",
    "control/launcher/agents/reception.py: Reception": "a field for each fact of the hosts that dial and of who waits",
    "control/launcher/supervise/job_hosts.py: JobHosts": "a field for each part of the launcher that hosts concern",
    "control/queue/attempt.py: Attempt": "a method for each file that a daemon and its runner share",
    "control/roster/service.py: RosterService": "one loop that passes each event to the decision and carries it out",
    "control/simulator/simulation.py: Simulation": "the state of a whole simulation, which one loop advances",
    "torch/distributed/process_group.py: ProcessGroup": "a method for each one of c10d's interface",
    "torch/gradient_entry.py: GradientEntry": "a method for each thing that a reducer asks of a gradient",
    "base/wire/roster_client.py: RosterClient": "a method of a line or two for each message of a worker",
}
"""The reason why a class is not split."""
# A comment that says so in C++: above the class, or at the head of its file.
CPP_REASON = re.compile(r"\bmore (methods|fields)\b")


def methods_of(cls: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in cls.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


def fields_of(cls: ast.ClassDef) -> set[str]:
    """Return the attributes that its methods assign to `self`."""
    nodes = [node for method in methods_of(cls) for node in ast.walk(method) if isinstance(node, ast.Attribute)]
    return {
        node.attr
        for node in nodes
        if isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name) and node.value.id == "self"
    }


def is_large(cls: ast.ClassDef) -> bool:
    """Return whether a class has too much; a record, which is declared as data, may have many fields."""
    return len(methods_of(cls)) > MOST_METHODS or len(fields_of(cls)) > MOST_FIELDS


def large_classes(text: str) -> list[ast.ClassDef]:
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef) and is_large(node)]


@pytest.mark.parametrize(
    ("body", "large"),
    [
        ("".join(f"    def m{i}(self): pass\n" for i in range(25)), False),
        ("".join(f"    def m{i}(self): pass\n" for i in range(26)), True),
        ("    def m(self):\n" + "".join(f"        self.f{i} = 1\n" for i in range(15)), False),
        (
            "    def m(self):\n        self.a, self.b = 1, 2\n"
            + "".join(f"        self.f{i} = 1\n" for i in range(14)),
            True,
        ),
        ("".join(f"    f{i}: int\n" for i in range(30)), False),
    ],
    ids=["25 methods", "26 methods", "15 fields", "16 fields", "a record"],
)
def test_large_classes_are_found(body: str, large: bool) -> None:
    assert bool(large_classes("class C:\n" + body)) == large


def test_large_classes_are_those_of_the_table() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    large = [f"{file.relative_to(PACKAGE)}: {cls.name}" for file in files for cls in large_classes(file.read_text())]
    assert large == sorted(LARGE)


# --- C++ -------------------------------------------------------------------------------------------------------------

CPP = """
#define CLASS(x) class Macro { x };
enum class Kind : uint8_t { kOne };
template <class T> struct Record { int number; void (*call)(int); };
// class Commented { void f(); };

// Speaks.
template <typename T>
class alignas(64) Mutex final : public Base<int>, Other {
 public:
  explicit Mutex(int count) : count_{count}, text_("class X { f(); }") {}
  ~Mutex() override;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;
  bool operator()(int value) const noexcept { return value == 1'000; }
  void lock() ACQUIRE();
  std::vector<int> all() const REQUIRES(mutex_) {
    if (count_ > 0) { return {}; }
    return std::vector<int>(3);
  }
  using Function = std::function<void(int)>;
  friend void swap(Mutex& a, Mutex& b);

 private:
  struct Inner {
    int number = 0;
    int twice() const { return 2 * number; }
  };
  static constexpr size_t kSize = sizeof(int);
  std::function<void(int, char)> call_ = nullptr;
  std::map<int, int> places_ GUARDED_BY(mutex_) = std::map<int, int>();
  int count_ = 0;
  std::array<Inner, (3 + 1)> inner_{};
  const char* text_;
};
class Declared;
struct Outer::Impl : Base { void run(); };
"""


def described(cls: CppClass) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    return cls.name, cls.methods, cls.fields


def test_classes_of_cpp_are_read() -> None:
    record, mutex, inner, impl = classes_in(CPP)
    assert described(record) == ("Record", (), ())
    assert mutex.name == "Mutex" and mutex.comment == "Speaks."
    assert mutex.methods == ("Mutex", "~Mutex", "operator()", "lock", "all")
    assert mutex.fields == ("call_", "places_", "count_", "inner_", "text_")
    assert described(inner) == ("Inner", ("twice",), ())
    assert described(impl) == ("Impl", ("run",), ())


def is_large_in_cpp(cls: CppClass) -> bool:
    return len(cls.methods) > MOST_METHODS or len(cls.fields) > MOST_FIELDS


def head_of(text: str) -> str:
    """Return the comment at the head of a file."""
    return "\n".join(re.findall(r"\A(?://.*\n)+", text))


def test_large_classes_of_cpp_say_why() -> None:
    files = sorted(file for file in NATIVE.rglob("*") if file.suffix in (".h", ".cc"))
    found = [(file, file.read_text()) for file in files]
    large = [(file, text, cls) for file, text in found for cls in classes_in(text) if is_large_in_cpp(cls)]
    assert "Engine" in [cls.name for _, _, cls in large]
    silent = [
        f"{file.relative_to(NATIVE)}: {cls.name}"
        for file, text, cls in large
        if not CPP_REASON.search(cls.comment) and not CPP_REASON.search(head_of(text))
    ]
    assert not silent
