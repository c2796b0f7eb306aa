"""The doctor's output as text: the facts about a host, the findings, and a block for a bug report.

The block can be published: the home folder becomes `~`, the names of this host and of the user are replaced, and
addresses and variables that name hosts are omitted.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence

from farandole.base.display import tables
from farandole.base.display.wording import bytes_text, count
from farandole.base.nccl_library import version_text
from farandole.control.agent.inspect.facts import Facts, Interface
from farandole.control.launcher.doctor.advice import Backend, backends, taken
from farandole.control.launcher.doctor.differences import shorten
from farandole.control.launcher.doctor.findings import Finding, Level
from farandole.control.launcher.doctor.gpu_advice import cuda_text
from farandole.control.launcher.doctor.inspection import Silence
from farandole.control.launcher.doctor.nccl_choice import choices, pairs_of

_WIDTH = 15
# Variables that name hosts and addresses.
_HOSTS = re.compile(r"HOST|ADDR|ROSTER|LISTEN|NODE(LIST|FILE)")
_LINE = 118
# The meanings of nvidia-smi's names: the most distant part of the PCIe path.
_WAYS = {
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PHB": "a PCIe host bridge",
    "NODE": "several host bridges of a NUMA node",
    "SYS": "across NUMA nodes",
}
_COLOURS: dict[Level, str] = {"ok": "\x1b[32m", "note": "\x1b[33m", "problem": "\x1b[1;31m"}
_END = "\x1b[0m"

Paint = Callable[[Level, str], str]
Row = tuple[str, list[str]]


def plain(level: Level, text: str) -> str:
    """Return text unchanged."""
    return text


def coloured(level: Level, text: str) -> str:
    """Return text in the colour of its level, for a terminal."""
    return f"{_COLOURS[level]}{text}{_END}"


# --- one host ---------------------------------------------------------------------------------------------------------


def render_host(facts: Facts, findings: Sequence[Finding], paint: Paint = plain) -> str:
    """Return everything about one host as text."""
    lines = [facts.system.hostname or "this machine", "", *_table(describe(facts))]
    lines += ["", "what can move tensors", "", *_table(_backend_rows(backends(facts)))]
    if jobs := taken(facts):
        lines += ["", "what a job uses", "", *_table([(shape, [what]) for shape, what in jobs])]
    if chosen := choices(facts):
        lines += ["", "what NCCL would choose", "", *_table(_grouped_rows(chosen))]
    return "\n".join([*lines, "", *render_findings(findings, paint), ""])


def describe(facts: Facts, *, private: bool = False) -> list[Row]:
    """Return the facts as rows of a label and lines.

    Args:
        facts: the facts about a host.
        private: whether to omit addresses, and variables that name hosts.
    """
    rows: list[Row] = [
        ("farandole", [f"{facts.software.version}, in {facts.software.folder}"]),
        ("library", [_library(facts)]),
        ("python", [f"{facts.software.python}, {facts.software.executable}"]),
        ("system", [_listed(facts.system.distribution, f"Linux {facts.system.kernel}", facts.system.architecture)]),
        ("frameworks", _frameworks(facts) or ["none"]),
        ("cores", _cores(facts)),
        ("memory", _memory(facts)),
        ("gpus", _gpus(facts)),
        ("network", [_interface(each, private) for each in facts.network] or ["unknown"]),
        ("rdma", _rdma(facts) or ["none"]),
        ("limits", [_limits(facts)]),
        ("kernel", [_kernel(facts)]),
        ("surroundings", _surroundings(facts, private)),
        ("programs", [f"{each.name}: {each.version or 'unknown version'}, {each.path}" for each in facts.programs]),
        ("clock", [_clock(facts)]),
        ("cache", [_listed(facts.cache.folder, _free(facts.cache.free))]),
        ("variables", _variables(facts.surroundings.variables, private)),
        ("unknown", [f"{name}: {why}" for name, why in facts.unknown.items()]),
    ]
    return [row for row in rows if row[1]]


def _table(rows: Sequence[Row]) -> list[str]:
    return [
        f"{label if number == 0 else '':<{_WIDTH}}{line}" for label, lines in rows for number, line in enumerate(lines)
    ]


def _grouped_rows(pairs: Sequence[tuple[str, str]]) -> list[Row]:
    rows: dict[str, list[str]] = {}
    for label, text in pairs:
        rows.setdefault(label, []).append(text)
    return list(rows.items())


def _backend_rows(found: Sequence[Backend]) -> list[Row]:
    return [(each.name, [f"{'yes' if each.usable else 'no'}: {each.why}"]) for each in found]


def _listed(*parts: str | None) -> str:
    return ", ".join(part for part in parts if part)


def _size(number: int | None) -> str:
    return "unknown" if number is None else bytes_text(number)


def _free(number: int | None) -> str:
    return f"{_size(number)} free"


def _library(facts: Facts) -> str:
    software = facts.software
    if software.library is None:
        return f"does not load: {software.library_error or 'reason unknown'}"
    return f"{software.library_version} loads, {software.library}"


def _frameworks(facts: Facts) -> list[str]:
    lines = []
    for each in facts.frameworks:
        line = f"{each.name} {each.version or '(version unknown)'}"
        if each.import_error is not None:
            line += f", cannot be imported: {each.import_error}"
        elif each.import_seconds is not None:
            line += f", imported in {each.import_seconds:.1f} s"
        lines.append(_listed(line, each.detail))
    return lines


def _cores(facts: Facts) -> list[str]:
    processor = facts.processor
    quota = "" if processor.quota is None else f"the cgroup allows the time of {processor.quota:g}"
    head = _listed(f"{processor.cores}, of which this process may use {processor.allowed}", quota, processor.model)
    if len(processor.numa) < 2:
        return [head]
    nodes = [f"NUMA node {node.number}: cores {node.cores}, {_size(node.memory_bytes)}" for node in processor.numa]
    return [head, *nodes]


def _memory(facts: Facts) -> list[str]:
    memory = facts.memory
    limit = "" if memory.limit is None else f"the cgroup allows {_size(memory.limit)} ({_size(memory.used)} used)"
    lines = [_listed(f"{_size(memory.total)}, {_size(memory.available)} available", limit)]
    lines.append(f"/dev/shm: {_size(memory.shm_total)} (farandole shares memory through memfd and does not need it)")
    pages = f"huge pages: {memory.huge_pages or 'unknown'}; for shared memory: {memory.shared_huge_pages or 'unknown'}"
    return [*lines, pages]


def _gpus(facts: Facts) -> list[str]:
    gpus = facts.gpus
    lines = [
        _listed(
            f"{gpu.index}: {gpu.name}",
            "" if gpu.memory_mib is None else f"{gpu.memory_mib} MiB",
            "MIG" if gpu.partitioned else "",
            "" if gpu.numa is None else f"NUMA node {gpu.numa}",
        )
        for gpu in gpus.devices
    ]
    if not lines and gpus.nodes:
        lines = [f"{gpus.nodes} (only their files in /dev are visible)"]
    cuda = cuda_text(gpus)
    driver = _listed(f"driver {gpus.driver}" if gpus.driver else "", f"CUDA {cuda}" if cuda else "")
    lines += [driver] if driver else []
    if gpus.nccl is not None and gpus.nccl.version is not None:
        lines.append(_listed(f"NCCL {version_text(gpus.nccl.version)}", gpus.nccl.path))
    lines += [f"CUDA_VISIBLE_DEVICES={gpus.visible}"] if gpus.visible is not None else []
    lines += _gpu_links(facts)
    return [*lines, *gpus.other] or ["none"]


def _gpu_links(facts: Facts) -> list[str]:
    gpus = facts.gpus
    lines = []
    for title, links in (
        ("links", [(link.kind, f"{link.first}-{link.second}") for link in gpus.links]),
        ("adapters", [(link.kind, f"{link.gpu}-{link.adapter}") for link in gpus.adapters]),
    ):
        groups: dict[str, list[str]] = {}
        for kind, pair in links:
            groups.setdefault(kind, []).append(pair)
        lines += [
            f"{title}: {_way(kind)} between {pairs_of(pairs, len(groups) == 1)}" for kind, pairs in groups.items()
        ]
    lines += [f"NVSwitches: {gpus.switches}"] if gpus.switches else []
    active = sorted(set(gpus.nvlinks.values()))
    return [*lines, f"NVLinks of each GPU: {' to '.join(map(str, active))}"] if any(active) else lines


def _way(kind: str) -> str:
    meaning = "NVLink" if kind.startswith("NV") else _WAYS.get(kind)
    return f"{kind} ({meaning})" if meaning else kind


def _interface(each: Interface, private: bool) -> str:
    state = "no connection" if each.state == "up" and each.carrier is False else each.state
    speed = "" if each.speed is None else f"{each.speed} Mbit/s"
    if private:
        families = {"IPv6" if ":" in address.address else "IPv4" for address in each.addresses}
        carried = " and ".join(sorted(families)) or "no address"
    else:
        carried = " ".join(f"{address.address}/{address.prefix}" for address in each.addresses) or "no address"
    return _listed(f"{each.name}: {each.kind}", each.driver, state, speed, f"MTU {each.mtu}", carried)


def _rdma(facts: Facts) -> list[str]:
    return [
        _listed(f"{each.name} port {each.port}: {each.state}", each.rate, each.link_layer, *each.interfaces)
        for each in facts.rdma
    ]


def _limits(facts: Facts) -> str:
    limits = facts.limits
    parts = []
    for name, limit in (
        ("open files", limits.open_files),
        ("locked bytes", limits.locked_bytes),
        ("processes", limits.processes),
    ):
        soft, hard = (("unlimited" if value is None else str(value)) for value in (limit.soft, limit.hard))
        parts.append(f"{name} {soft}" if soft == hard else f"{name} {soft} (up to {hard})")
    for name, limit in (("bytes of a file", limits.file_bytes), ("bytes of address space", limits.address_bytes)):
        if limit.soft is not None:
            parts.append(f"{name} {limit.soft}")
    if limits.cgroup_processes is not None:
        parts.append(f"processes in the cgroup {limits.cgroup_processes}")
    return ", ".join(parts)


def _kernel(facts: Facts) -> str:
    kernel = facts.kernel
    parts = [f"{name}: {why or 'works'}" for name, why in kernel.trials.items()]
    parts += [f"ptrace_scope {kernel.ptrace_scope}"] if kernel.ptrace_scope is not None else []
    parts += ["seccomp filters"] if kernel.seccomp else []
    parts += ["no user namespaces"] if kernel.user_namespaces == 0 else []
    return ", ".join(parts)


def _surroundings(facts: Facts, private: bool) -> list[str]:
    around = facts.surroundings
    lines = [f"container: {around.container}"] if around.container else ["no container"]
    lines += [f"{around.batch}: {' '.join(_variables(around.batch_job, private))}"] if around.batch else []
    return [*lines, f"commands: {' '.join(around.batch_tools)}"] if around.batch_tools else lines


def _variables(variables: Mapping[str, str], private: bool) -> list[str]:
    return [f"{name}={value}" for name, value in variables.items() if not (private and _HOSTS.search(name))]


def _clock(facts: Facts) -> str:
    clock = facts.clock
    told = {True: "synchronised", False: "not synchronised", None: "synchronisation unknown"}[clock.synchronised]
    error = "" if clock.error_seconds is None else f"within {clock.error_seconds:.3g} s"
    return _listed(clock.source, told, error)


# --- findings ---------------------------------------------------------------------------------------------------------


def render_findings(findings: Sequence[Finding], paint: Paint = plain) -> list[str]:
    """Return findings as text, each with the next step below it."""
    lines = []
    for finding in findings:
        lines.append(f"{paint(finding.level, f'{finding.level:<8}')} {finding.subject}: {finding.text}")
        lines += [f"{'':<8} hint: {finding.todo}"] if finding.todo else []
    return lines


def verdict(findings: Sequence[Finding], paint: Paint = plain) -> str:
    """Return the last line: whether there are problems."""
    problems = sum(finding.level == "problem" for finding in findings)
    notes = sum(finding.level == "note" for finding in findings)
    if problems:
        return paint("problem", f"{count(problems, 'problem')} found")
    told = f", {count(notes, 'note')}" if notes else ""
    return paint("ok", f"no problem found{told}")


def bug_report(facts: Facts, findings: Sequence[Finding], home: str) -> str:
    """Return the facts that a reader of a bug report needs, without names of users, hosts and addresses.

    Args:
        facts: the facts about this machine.
        findings: the findings about it.
        home: the folder that is replaced by `~`.
    """
    rows = [row for row in describe(facts, private=True) if row[0] != "cache"]
    rows += [(finding.level, [finding.text]) for finding in findings if finding.level != "ok"]
    text = "\n".join(_table(rows))
    return "for a bug report, copy this:\n\n```\n" + without_names(text, home, facts.system.hostname) + "\n```"


def without_names(text: str, home: str, hostname: str) -> str:
    """Replace a home folder, its user and this host in a text."""
    home = home.rstrip("/")
    user = home.rpartition("/")[2]
    if user:
        text = text.replace(home, "~").replace(f"/{user}/", "/USER/")
    return re.sub(rf"\b{re.escape(hostname)}\b", "HOST", text) if hostname else text


# --- several hosts ----------------------------------------------------------------------------------------------------

_HEAD = ("host", "farandole", "python", "torch", "cores", "memory", "gpus", "problems", "notes")


def render_hosts(
    hosts: Mapping[str, Facts | Silence], findings: Mapping[str, Sequence[Finding]], paint: Paint = plain
) -> str:
    """Return a table of several hosts, and the findings about them: each once, with the hosts that it applies to."""
    rows = [_HEAD, *(_host_row(name, facts, findings[name]) for name, facts in hosts.items())]
    return "\n".join([*tables.lines(rows), "", *_grouped(findings, paint), ""])


def _host_row(name: str, facts: Facts | Silence, findings: Sequence[Finding]) -> tuple[str, ...]:
    levels = [finding.level for finding in findings]
    counts = (str(levels.count("problem")), str(levels.count("note")))
    if isinstance(facts, Silence):
        return (name, *["?"] * (len(_HEAD) - 3), *counts)
    torch = next((each.version or "?" for each in facts.frameworks if each.name == "torch"), "-")
    return (
        name,
        facts.software.version,
        facts.software.python,
        torch,
        str(facts.processor.allowed),
        _size(facts.memory.total),
        str(len(facts.gpus.devices) or facts.gpus.nodes),
        *counts,
    )


def _grouped(findings: Mapping[str, Sequence[Finding]], paint: Paint) -> list[str]:
    groups: dict[Finding, list[str]] = {}
    for name, found in findings.items():
        for finding in found:
            if finding.level != "ok":
                groups.setdefault(finding, []).append(name)
    order = sorted(groups, key=lambda finding: finding.level != "problem")
    lines = []
    for finding in order:
        where = "all hosts" if len(groups[finding]) == len(findings) > 1 else shorten(groups[finding])
        head, *rest = render_findings([finding], paint)
        lines += textwrap.wrap(f"{head} ({where})", _LINE, subsequent_indent=" " * 9) + rest
    return lines
