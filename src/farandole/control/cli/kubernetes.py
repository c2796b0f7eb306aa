"""`farandole kubernetes`: install the operator in a cluster, remove it, or run it."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from typing import Any

from farandole.base.installed import own_version
from farandole.control.cli.parser import Parser
from farandole.control.kubernetes.deploy import install
from farandole.control.kubernetes.deploy.manifests import IMAGE, Install
from farandole.control.kubernetes.model import Options
from farandole.errors import SpecError

_EPILOG = """\
examples:
  farandole kubernetes install --dry-run | less      show what would be applied
  farandole kubernetes install                       apply it to the cluster in KUBECONFIG
  farandole kubernetes install --jobs-namespace ml   serve only jobs in ml, with rights only there
  farandole kubernetes uninstall                     remove everything
  farandole kubernetes operator                      run the operator in this process

It needs pip install 'farandole[kubernetes]'. How jobs run there: docs/how-to/kubernetes.md.
"""
_MANIFESTS = "farandole-system"


def add_options(parser: Parser) -> None:
    """Add the options of this verb, and the texts of its help."""
    parser.describe(
        _nothing,
        usage="farandole kubernetes (install | uninstall | operator) ...",
        description="Installs, removes or runs the operator that serves MPIJobs and TrainingJobs in a cluster.",
        epilog=_EPILOG,
    )
    what = parser.add_subparsers(metavar="ACTION", dest="what", prog="farandole kubernetes", parser_class=type(parser))
    _add_install(what)
    _add_uninstall(what)
    _add_operator(what)


def _add_install(what: Any) -> None:
    parser = what.add_parser("install", help="apply the resource definitions, roles and the operator")
    parser.set_defaults(execute=_install, parser=parser)
    add = parser.add_argument
    add("--dry-run", action="store_true", help="print what would be applied, without contacting a cluster")
    add("--json", action="store_true", help="with --dry-run: print JSON instead of YAML")
    _add_where(parser)
    add("--image", default="", metavar="IMAGE", help="the operator's image (default: the one of this version)")
    add(
        "--replicas",
        type=int,
        default=2,
        metavar="N",
        help="number of operators, of which one is active (default: %(default)d)",
    )
    _add_gang(parser)


def _add_uninstall(what: Any) -> None:
    parser = what.add_parser("uninstall", help="delete everything that install applied")
    parser.set_defaults(execute=_uninstall, parser=parser)
    _add_where(parser)
    parser.add_argument("--delete-jobs", action="store_true", help="uninstall even if jobs exist, and delete them")


def _add_where(parser: Any) -> None:
    add = parser.add_argument
    add("--namespace", default=_MANIFESTS, metavar="NAME", help="the operator's namespace (default: %(default)s)")
    add("--jobs-namespace", default="", metavar="NAME", help="serve only jobs in this namespace (default: in all)")


def _add_gang(parser: Any) -> None:
    help_text = "create PodGroups for volcano, or for the named scheduler with the coscheduling plugin (default: none)"
    parser.add_argument("--gang-scheduler", default="", metavar="NAME", help=help_text)


def _add_operator(what: Any) -> None:
    parser = what.add_parser("operator", help="run the operator until SIGTERM")
    parser.set_defaults(execute=_operator, parser=parser)
    add = parser.add_argument
    add("--jobs-namespace", default="", metavar="NAME", help="serve only jobs in this namespace (default: in all)")
    add(
        "--lease-namespace", default="", metavar="NAME", help="namespace of the lease by which operators elect a leader"
    )
    lease_text = "seconds of silence after which another operator takes over (default: %(default)d)"
    add("--lease-seconds", type=_lease_seconds, default=15, metavar="S", help=lease_text)
    add("--image", default="", metavar="IMAGE", help="the operator's own image, from which launchers get kubectl")
    add("--no-deliver-kubectl", action="store_true", help="do not copy kubectl to launchers: their image contains it")
    add(
        "--drain-seconds",
        type=float,
        default=30.0,
        metavar="S",
        help="seconds that workers have to leave before they are deleted (default: %(default)g)",
    )
    add(
        "--address",
        default="0.0.0.0",
        metavar="IP",
        help="address of /metrics, /healthz and /readyz (default: %(default)s)",
    )
    add(
        "--port", type=int, default=8080, metavar="N", help="port of these; 0: do not serve them (default: %(default)d)"
    )
    add("--verbose", action="store_true", help="log more about errors that are retried")
    _add_gang(parser)


def _lease_seconds(text: str) -> int:
    if not text.isdecimal() or not 3 <= int(text) <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 3 to 3600")
    return int(text)


def _nothing(options: argparse.Namespace) -> int:
    options.parser.error("the action is missing: install, uninstall or operator")
    return 2


def _image(given: str) -> str:
    return given or f"{IMAGE}:{own_version()}"


def _install(options: argparse.Namespace) -> int:
    with _needs():
        wanted = Install(
            namespace=options.namespace,
            jobs_namespace=options.jobs_namespace,
            image=_image(options.image),
            replicas=options.replicas,
            gang_scheduler=options.gang_scheduler,
        )
        if options.dry_run:
            return install.dry_run(wanted, options.json, sys.stdout)
        return install.apply(wanted, sys.stderr)


def _uninstall(options: argparse.Namespace) -> int:
    with _needs():
        installed = Install(namespace=options.namespace, jobs_namespace=options.jobs_namespace)
        return install.remove(installed, options.delete_jobs, sys.stderr)


def _operator(options: argparse.Namespace) -> int:
    with _needs():
        # Needs packages of the extra kubernetes.
        from farandole.control.kubernetes.operator import process

        served = Options(
            image=_image(options.image),
            gang_scheduler=options.gang_scheduler,
            drain_seconds=options.drain_seconds,
            deliver_kubectl=not options.no_deliver_kubectl,
        )
        settings = process.OperatorSettings(
            options=served,
            namespace=options.jobs_namespace,
            lease_namespace=options.lease_namespace or os.environ.get("POD_NAMESPACE", "default"),
            lease_seconds=options.lease_seconds,
            host=options.address,
            port=options.port or None,
        )
        return process.main(settings, options.verbose)


class _needs:
    """Context manager that turns a missing package or a refusal by the cluster into an error with a hint."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] != "farandole":
            raise SpecError(f"Kubernetes needs {error.name}", "pip install 'farandole[kubernetes]'") from error
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise SpecError(f"{error.strerror}", "use another --port, or --port 0 for no metrics") from error
        name = type(error).__module__
        if error is not None and name.startswith("lightkube."):
            raise SpecError(
                f"no cluster is configured: {error}", "set KUBECONFIG; kubectl config view shows what is configured"
            ) from error
        if error is not None and name == "farandole.control.kubernetes.api.errors":
            reached = getattr(error, "code", 0) != 0
            hint = (
                "kubectl auth can-i --list shows what you may do"
                if reached
                else "check that kubectl cluster-info shows the right cluster"
            )
            raise SpecError(f"the cluster refused: {error}" if reached else str(error), hint) from error
        if isinstance(error, TimeoutError) or type(error).__name__ == "TimeoutError":
            raise SpecError(
                "the cluster did not finish within a minute", "kubectl get events -A may show why"
            ) from error
