"""Options that several verbs share: the workers, the hosts, and how to reach the hosts."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from farandole.base.settings.table import FLAGS
from farandole.control.agent.gpus import visible_gpus
from farandole.control.launcher.job.elastic import GRACE_SECONDS, PREEMPTION_SECONDS, TIMEOUT_SECONDS, Elastic
from farandole.control.launcher.job.host_list import Host, choose, parse_hosts, read_host_file, with_python, with_slots
from farandole.control.launcher.job.ssh_and_ship import SshOptions
from farandole.control.launcher.targets.ssh import is_ssh
from farandole.errors import SpecError

_AUTO = ("auto", "gpu", "cpu")


def add_hosts(parser: argparse.ArgumentParser) -> None:
    """Add the options that give the number of workers and the hosts."""
    add = parser.add_argument_group("workers and hosts").add_argument
    add(
        "-np",
        "--num-proc",
        metavar="N",
        help="number of workers (of an elastic job: at the start), or auto: one for each GPU, or each core without "
        "GPUs (default: all slots of the hosts)",
    )
    where = parser.add_argument_group().add_mutually_exclusive_group()
    where.add_argument("-H", "--hosts", metavar="HOST:SLOTS,...", help="hosts and slots: h1:4,h2:4, node[01-16]:8")
    where.add_argument("--hostfile", metavar="FILE", help="file with one line HOST slots=N for each host")
    add("--include", metavar="HOSTS", default="", help="use only these hosts")
    add("--exclude", metavar="HOSTS", default="", help="do not use these hosts")
    add("--nnodes", metavar="N", help="use only the first N hosts (torchrun's spelling)")
    add("--nproc-per-node", metavar="N", help="workers on each host: a number, auto, gpu or cpu (torchrun's spelling)")
    add(
        "--python",
        action="append",
        default=[],
        metavar="[HOST=]PATH",
        help="path of Python on the other hosts, if it differs from the path here",
    )


def add_network(parser: argparse.ArgumentParser, *, starts_agents: bool = True) -> None:
    """Add the options for reaching hosts.

    Args:
        parser: the parser of the verb.
        starts_agents: whether the verb starts agents on the hosts, which may start others.
    """
    add = parser.add_argument_group("network").add_argument
    add(
        "--network",
        action="append",
        default=[],
        metavar="NAME|ADDRESS|CIDR",
        help="network between the workers; several are used together (default: the reachable ones, fastest first)",
    )
    add(
        "--ssh",
        metavar="PROGRAM",
        default="ssh",
        help="program to run instead of ssh, with the same arguments (default: ssh)",
    )
    add("-p", "--ssh-port", metavar="PORT", type=int, help="port of the ssh servers")
    add("-i", "--ssh-identity", "--ssh-identity-file", metavar="FILE", default="", help="private key for ssh")
    add("--ssh-option", action="append", default=[], metavar="NAME=VALUE", help="option for ssh, as after its -o")
    if starts_agents:
        add(
            "--ssh-fanout",
            metavar="N",
            type=int,
            default=SshOptions.fanout,
            help="of more hosts than this, the launcher of a job of fixed size reaches N itself, which start the "
            f"others (default: {SshOptions.fanout}; 0: it reaches all hosts itself)",
        )


def add_elastic(parser: argparse.ArgumentParser) -> None:
    """Add the options of elastic jobs."""
    add = parser.add_argument_group(
        "elastic jobs", "training continues while workers fail, leave and join"
    ).add_argument
    add("--min-np", metavar="N", type=int, help="number of workers below which the job waits (default: -np)")
    add("--max-np", metavar="N", type=int, help="maximum number of workers (default: all slots)")
    where = parser.add_argument_group().add_mutually_exclusive_group()
    where.add_argument(
        "--host-discovery-script",
        metavar="FILE",
        help="program that prints the hosts as lines HOST:SLOTS; run every second",
    )
    where.add_argument(
        "--hosts-from",
        metavar="SOURCE",
        help="where hosts are found: script:FILE, file:FILE, dns:NAME[:SLOTS], dial:PORT:FILE",
    )
    add(
        "--slots-per-host",
        "--slots",
        metavar="N",
        type=int,
        help="slots of discovered hosts that come without a number (default: 1)",
    )
    add("--spares", metavar="N", type=int, help="number of idle workers to keep ready as replacements (default: 0)")
    add("--reset-limit", metavar="N", type=int, help="end the job after N changes of the world (default: no limit)")
    add("--elastic-timeout", metavar="S", type=float, help="seconds to wait for --min-np workers (default: 600)")
    add("--grace", metavar="S", type=float, help="seconds that a worker has to leave when asked to (default: 30)")
    _add_preemption(parser)


def _add_preemption(parser: argparse.ArgumentParser) -> None:
    sign = parser.add_argument_group().add_mutually_exclusive_group()
    sign.add_argument(
        "--preemption-file",
        metavar="PATH",
        help="file whose appearance on a host means that the host will be reclaimed soon",
    )
    sign.add_argument(
        "--preemption-command",
        metavar="COMMAND",
        help="shell command that exits with 0 on a host that will be reclaimed soon, and with 1 on others",
    )
    parser.add_argument_group().add_argument(
        "--preemption-interval", metavar="S", type=float, help="seconds between checks of each host (default: 5)"
    )


def add_settings(parser: argparse._ActionsContainer, group: str = "") -> None:
    """Add the options for the workers' settings in one help group: those of the settings table that have a flag."""
    for row in FLAGS.values():
        flag = row.flag
        if flag is None or flag.group != group:
            continue
        if flag.is_switch:
            parser.add_argument(f"--{flag.name}", dest=row.name, action="store_true", help=flag.help)
        else:
            choices = flag.choices or None
            action = parser.add_argument(
                f"--{flag.name}",
                dest=row.name,
                metavar=flag.metavar,
                type=flag.type,
                choices=choices,
                help=flag.help,
            )
            if flag.value_alone:
                action.value_alone = flag.value_alone  # type: ignore[attr-defined]


def read_settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return the workers' settings that were given, by name and in their units."""
    asked = {}
    for row in FLAGS.values():
        value = getattr(options, row.name)
        # Switches that were not given are left to the environment, like every other setting.
        if row.flag is not None and value is not None and value is not False:
            asked[row.name] = value * row.flag.unit if row.flag.unit != 1 else value
    return asked


def read_elastic(options: argparse.Namespace) -> Elastic | None:
    """Return the limits of an elastic job; None if the job is not elastic.

    Raises:
        SpecError: a value is not valid, or the minimum number of workers is not known.
    """
    fewest, most = _range_of_workers(options)
    given = (
        *(options.min_np, options.max_np, options.host_discovery_script, options.hosts_from, options.slots_per_host),
        *(options.spares, options.reset_limit, options.elastic_timeout, options.grace),
        *(options.preemption_file, options.preemption_command, options.preemption_interval),
    )
    if fewest is None and all(value is None for value in given):
        return None
    workers = _workers(options.num_proc)
    least = next((value for value in (options.min_np, fewest, workers) if value is not None), None)
    if least is None:
        raise SpecError("the minimum number of workers is missing", "add --min-np 2")
    script = f"script:{options.host_discovery_script}" if options.host_discovery_script else ""
    return Elastic(
        min_size=least,
        max_size=most if options.max_np is None else options.max_np,
        discovery=script or options.hosts_from or "",
        slots=options.slots_per_host or _per_host(options.nproc_per_node),
        timeout=TIMEOUT_SECONDS if options.elastic_timeout is None else options.elastic_timeout,
        reset_limit=options.reset_limit,
        spares=options.spares or 0,
        grace=GRACE_SECONDS if options.grace is None else options.grace,
        preemption_file=options.preemption_file or "",
        preemption_command=options.preemption_command or "",
        preemption_interval=PREEMPTION_SECONDS if options.preemption_interval is None else options.preemption_interval,
    )


def _range_of_workers(options: argparse.Namespace) -> tuple[int | None, int | None]:
    """Return the limits of torchrun's --nnodes FEWEST:MOST, converted to workers; None, None: no range is given."""
    fewest, colon, most = (options.nnodes or "").partition(":")
    if not colon or fewest == most:
        return None, None
    if not fewest.isdecimal() or not most.isdecimal() or not 0 < int(fewest) < int(most):
        raise SpecError(f"--nnodes {options.nnodes} is not a number of hosts", "use a number, or FEWEST:MOST")
    per_host = _per_host(options.nproc_per_node) or 1
    return int(fewest) * per_host, int(most) * per_host


def read_hosts(options: argparse.Namespace, elastic: Elastic | None = None) -> tuple[int | None, tuple[Host, ...]]:
    """Return the number of workers (None: all slots, GPUs or cores) and the hosts.

    Args:
        options: the parsed options of the command line.
        elastic: the limits of an elastic job; None for a job of fixed size.

    Raises:
        SpecError: the options contradict each other, or a value is not valid.
    """
    workers = _workers(options.num_proc)
    per_host = _per_host(options.nproc_per_node)
    hosts: tuple[Host, ...] = ()
    if elastic is not None and elastic.discovery:
        if options.hosts or options.hostfile:
            raise SpecError("-H and --hostfile cannot be combined with host discovery", "omit one of them")
        return workers, ()
    if options.hosts:
        hosts = parse_hosts(options.hosts)
    elif options.hostfile:
        hosts = read_host_file(Path(options.hostfile))
    elif options.include or options.exclude:
        raise SpecError("--include and --exclude choose among hosts, but no hosts are given", "add -H or --hostfile")
    if not hosts:
        return _on_this_machine(options, workers, per_host, elastic is not None), ()
    hosts = choose(hosts, options.include, options.exclude)
    hosts = _first(hosts, options.nnodes)
    if per_host is not None:
        hosts = tuple(replace(host, slots=per_host) for host in hosts)
    _check_python(hosts, options.python)
    hosts = with_python(with_slots(hosts, None), options.python)
    return None if options.num_proc == "auto" else workers, hosts


def read_ssh(options: argparse.Namespace) -> SshOptions:
    """Return the ssh options for reaching other hosts.

    Raises:
        SpecError: the key does not exist, the port or the number of hosts is not valid, or the program would not get
            an option.
    """
    if options.ssh_identity and not os.path.exists(os.path.expanduser(options.ssh_identity)):
        raise SpecError(f"the key {options.ssh_identity} does not exist", "check the path after --ssh-identity")
    if options.ssh_port is not None and not 0 < options.ssh_port < 65536:
        raise SpecError(f"{options.ssh_port} is not a valid port", "use 1 to 65535")
    fanout = getattr(options, "ssh_fanout", SshOptions.fanout)
    if fanout < 0:
        raise SpecError(f"--ssh-fanout {fanout} is not a number of hosts", "use 1 or more, or 0 to reach all from here")
    found = SshOptions(options.ssh, options.ssh_port, options.ssh_identity, tuple(options.ssh_option), fanout)
    if not is_ssh(found):
        _refuse_unused(found)
    return found


def _refuse_unused(ssh: SshOptions) -> None:
    given = {"--ssh-port": ssh.port, "--ssh-identity": ssh.identity, "--ssh-option": ssh.options}
    for flag in (flag for flag, value in given.items() if value):
        raise SpecError(
            f"{flag} has no effect with --ssh {ssh.program}: only a program with ssh in its name gets such options",
            f"omit {flag}, or rename the program",
        )


def read_network(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the networks, which may be separated by commas."""
    return tuple(network for text in options.network for network in text.split(",") if network)


def _workers(text: str | None) -> int | None:
    if text is None or text == "auto":
        return None
    if not text.isdecimal():
        raise SpecError(f"-np {text} is not a number of workers", "use a number from 1 up, or auto")
    return int(text)


def _per_host(text: str | None) -> int | None:
    """Return --nproc-per-node as a number, which for auto, gpu and cpu is counted on this machine; None: not given."""
    if text is None:
        return None
    if text in _AUTO:
        gpus = 0 if text == "cpu" else len(visible_gpus(os.environ))
        if text == "gpu" and not gpus:
            raise SpecError("--nproc-per-node gpu: no GPU is visible on this machine", "use a number, or cpu")
        return gpus or len(os.sched_getaffinity(0))
    if not text.isdecimal() or int(text) < 1:
        raise SpecError(
            f"--nproc-per-node {text} is not a number of workers", "use a number from 1 up, auto, gpu or cpu"
        )
    return int(text)


def _on_this_machine(
    options: argparse.Namespace, workers: int | None, per_host: int | None, elastic: bool
) -> int | None:
    if options.nnodes is not None and options.nnodes.partition(":")[0] != "1":
        raise SpecError(
            f"--nnodes {options.nnodes}: no hosts are given", "start farandole once, not on each host: add -H h1,h2"
        )
    if options.num_proc is None and per_host is None and not elastic:
        raise SpecError(
            "the number of workers is missing", "add -np 2 or -np auto, or give hosts with slots: -H h1:4,h2:4"
        )
    return workers if options.num_proc is not None else per_host


def _first(hosts: tuple[Host, ...], nnodes: str | None) -> tuple[Host, ...]:
    if nnodes is None:
        return hosts
    fewest, colon, most = nnodes.partition(":")
    if not fewest.isdecimal() or (colon and not most.isdecimal()) or int(fewest) < 1:
        raise SpecError(f"--nnodes {nnodes} is not a number of hosts", "use a number, or FEWEST:MOST")
    if len(hosts) < int(fewest):
        raise SpecError(f"--nnodes {nnodes}: there are only {len(hosts)} hosts", "give more hosts, or a smaller number")
    return hosts[: int(most or fewest)]


def _check_python(hosts: tuple[Host, ...], pythons: list[str]) -> None:
    for text in pythons:
        label, equals, _ = text.rpartition("=")
        if equals and label not in {host.label for host in hosts}:
            raise SpecError(f"--python {text}: {label} is not one of the hosts", "write --python HOST=PATH")
