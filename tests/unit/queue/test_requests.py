"""Requests of users to a queue, and the errors for those that are refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from queue_world import ANN, BOB, ROOT, FakeDaemon, World, hosts, refused

from farandole.control.jobs.errors import Refused
from farandole.control.queue.hosts import parse_queue_hosts
from farandole.control.queue.model import Phase
from farandole.control.queue.settings import QueueSettings, Quota, changed
from farandole.control.queue.store import QueueStore
from farandole.control.scheduler.handover import count

HOSTS = hosts("h1:4,h2:4")


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[FakeDaemon]:
    settings = changed(QueueSettings(), ["queue.vision=limit=4", "user.ann=slots=4,jobs=3"])
    daemon = FakeDaemon(tmp_path, World(), HOSTS, settings)
    yield daemon
    daemon.close()


def test_job_larger_than_queue_is_refused_with_existing_slots(daemon: FakeDaemon) -> None:
    said = refused(lambda: daemon.submit("big", BOB, workers=9))
    assert said.startswith("Refused: 9 workers can never run here: there are 8 slots (h1:4, h2:4) | ask for 8 at most")
    daemon.submit("grows", BOB, workers="8:16")
    daemon.turns()
    assert sum(daemon.state.jobs["grows"].slots.values()) == 8


def test_slots_of_two_types_cannot_be_combined(tmp_path: Path) -> None:
    daemon = FakeDaemon(tmp_path, World(), parse_queue_hosts("h1:4/a100,h2:2/t4"), QueueSettings())
    said = refused(lambda: daemon.submit("big", workers=5))
    assert "5 workers can never run here: there are 4 slots of one type" in said
    daemon.close()


def test_unknown_queue_is_refused_with_suggestion(daemon: FakeDaemon) -> None:
    said = refused(lambda: daemon.submit("a", queue="visoin"))
    assert said == "Refused: there is no queue visoin | did you mean vision? There are default, vision"


def test_limits_of_one_are_singular_and_hints_name_no_option_of_another_command(tmp_path: Path) -> None:
    def configure(text: str) -> QueueSettings:
        settings = changed(QueueSettings(), [text])
        settings.check()
        return settings

    assert refused(lambda: configure("queue.a=parent=b")).endswith("| define the queue b as well")
    assert "--queue" not in refused(lambda: configure("queue.a=limit=none"))
    daemon = FakeDaemon(tmp_path, World(), HOSTS, configure("user.ann=slots=1"))
    assert "ann may have 1 slot at once" in refused(lambda: daemon.submit("a", workers=2))
    daemon.close()


def test_quotas_are_enforced(daemon: FakeDaemon) -> None:
    assert "ann may have 4 slots at once, and the job needs 5" in refused(lambda: daemon.submit("a", workers=5))
    for name in "abc":
        daemon.submit(name, workers=2)
    said = refused(lambda: daemon.submit("d", workers=2))
    assert said.startswith("Refused: quota reached: ann has 3 of 3 jobs | wait until one is over, or cancel one")
    daemon.submit("other", BOB, workers=2)
    daemon.turns()
    assert daemon.state.jobs["c"].phase is Phase.WAITING
    assert daemon.state.status("c").reason.startswith("waits: queue default/ann has reached its limit")
    assert daemon.state.jobs["other"].phase is Phase.RUNNING
    daemon.until_over()
    daemon.submit("d", workers=2)


@pytest.mark.parametrize("policy", ["fcfs", "fair", "adaptive"])
def test_quota_of_zero_slots_refuses_jobs(tmp_path: Path, policy: str) -> None:
    if policy == "adaptive":
        pytest.importorskip("scipy")
    daemon = FakeDaemon(tmp_path, World(), HOSTS, QueueSettings(policy=policy))
    daemon.submit("waits", workers=2, work=100, suspension="requeue")
    daemon.state.configure(changed(daemon.state.settings, ["user.ann=slots=0"]))
    daemon.submit("other", BOB, workers=2)
    daemon.turns()
    assert daemon.state.jobs["waits"].phase is Phase.WAITING
    assert "limit" in daemon.state.status("waits").reason
    assert daemon.state.jobs["other"].phase is Phase.RUNNING
    assert "ann may have 0 slots at once" in refused(lambda: daemon.submit("more"))
    daemon.close()


def test_limit_of_queue_is_enforced(daemon: FakeDaemon) -> None:
    for name in "abc":
        daemon.submit(name, BOB, workers=2, queue="vision")
    daemon.turns()
    assert [daemon.state.jobs[name].phase for name in "abc"] == [Phase.RUNNING, Phase.RUNNING, Phase.WAITING]
    assert "queue vision has reached its limit" in daemon.state.status("c").reason


def test_job_above_queue_limit_is_refused(tmp_path: Path) -> None:
    settings = changed(QueueSettings(), ["queue.lab=limit=3", "queue.vision=parent=lab,limit=6"])
    daemon = FakeDaemon(tmp_path, World(), HOSTS, settings)
    said = refused(lambda: daemon.submit("a", workers=4, queue="vision"))
    assert said.startswith("Refused: queue lab may have 3 slots at once, and the job needs 4 | ask for 3 at most")
    daemon.submit("a", workers=2, queue="vision")
    assert "queue lab may have 3 slots at once" in refused(lambda: daemon.change("scale", "a", 4))
    daemon.submit("grows", workers="2:8", queue="vision")
    daemon.close()


@pytest.mark.parametrize("verb", ["cancel", "suspend", "resume", "scale"])
def test_only_owner_and_administrator_can_change_job(daemon: FakeDaemon, verb: str) -> None:
    daemon.submit("a", workers="1:4", checkpoint="/c")
    daemon.turns()
    said = refused(lambda: daemon.change(verb, "a", 2, BOB))
    assert said.startswith(f"NotAllowed: job a belongs to ann: bob cannot {verb} it")
    if verb == "resume":
        daemon.change("suspend", "a")
        daemon.turns()
    daemon.change(verb, "a", 2, ROOT)
    event = daemon.state.status("a", whole=True).events[-1].text
    assert event.endswith("by root")


def test_name_of_unfinished_job_is_taken(daemon: FakeDaemon) -> None:
    daemon.submit("a", BOB)
    from farandole.control.queue.protocol import Submit

    again = Submit({"name": "a", "command": ["true"]}, {}, "/", "another key")
    said = refused(lambda: daemon.state.submit(again, BOB, 0.0))
    assert "there is already a job a of bob" in said
    daemon.until_over()
    assert "bob had a job a" in refused(lambda: daemon.state.submit(again, ANN, 0.0))
    assert daemon.state.submit(again, BOB, daemon.world.now) == "a"
    daemon.until_over()
    assert daemon.state.jobs["a"].attempt == 2, "the files of the first one are kept apart"


def test_a_job_without_a_name_gets_one(daemon: FakeDaemon) -> None:
    from farandole.control.queue.protocol import Submit

    name = daemon.state.submit(Submit({"command": ["true"]}, {}, "/", "k"), BOB, 0.0)
    assert name in daemon.state.jobs and name.count("-") == 2


def test_a_job_is_suspended_and_resumed(daemon: FakeDaemon) -> None:
    daemon.submit("saves", BOB, work=20, workers=2, checkpoint="/c")
    daemon.turns()
    daemon.world.pass_to(daemon.world.now + 4)
    daemon.change("suspend", "saves", requester=BOB)
    daemon.turns()
    assert daemon.state.jobs["saves"].phase is Phase.SUSPENDED
    assert daemon.world.attempts["saves", 1].order == "suspend"
    daemon.change("resume", "saves", requester=BOB)
    begin = daemon.world.now
    daemon.until_over()
    assert daemon.state.jobs["saves"].phase is Phase.SUCCEEDED
    assert daemon.world.now - begin == pytest.approx(6), "it had done 4 of its 10 seconds"


def test_job_without_checkpoint_is_suspended_only_with_requeue(daemon: FakeDaemon) -> None:
    daemon.submit("plain", BOB)
    daemon.submit("anew", BOB, suspension="requeue")
    daemon.turns()
    assert "cannot be suspended: it has no checkpoint" in refused(
        lambda: daemon.change("suspend", "plain", requester=BOB)
    )
    daemon.change("suspend", "anew", requester=BOB)
    daemon.turns()
    assert daemon.state.jobs["anew"].phase is Phase.SUSPENDED
    assert daemon.world.attempts["anew", 1].order == "kill"


def test_waiting_job_is_suspended_at_once(daemon: FakeDaemon) -> None:
    daemon.submit("all", BOB, workers=8)
    daemon.submit("next", BOB, workers=8)
    daemon.turns()
    daemon.change("suspend", "next", requester=BOB)
    daemon.until_over()
    assert daemon.state.jobs["next"].phase is Phase.SUSPENDED and daemon.state.jobs["next"].attempt == 0


def test_a_job_is_scaled(daemon: FakeDaemon) -> None:
    daemon.submit("grows", BOB, workers="1:6", work=100)
    daemon.submit("plain", BOB, workers=2, work=100)
    daemon.turns()
    daemon.change("scale", "grows", 3, BOB)
    daemon.turns()
    assert sum(daemon.state.jobs["grows"].slots.values()) == 3
    assert "runs with 1 to 6 workers, not with 7" in refused(lambda: daemon.change("scale", "grows", 7, BOB))
    assert "is not elastic: it keeps its workers" in refused(lambda: daemon.change("scale", "plain", 1, BOB))
    daemon.submit("waits", BOB, workers=8)
    daemon.turns()
    daemon.change("scale", "waits", 1, BOB)
    daemon.turns()
    assert sum(daemon.state.jobs["waits"].slots.values()) == 1
    assert "9 workers can never run" in refused(lambda: daemon.submit("x", BOB, workers=9))


@pytest.mark.parametrize(
    ("verb", "said"),
    [
        ("cancel", "job a is over: it has succeeded"),
        ("suspend", "is over"),
        ("resume", "is not suspended"),
        ("scale", "is over"),
    ],
)
def test_ended_job_cannot_be_changed(daemon: FakeDaemon, verb: str, said: str) -> None:
    daemon.submit("a", BOB)
    daemon.until_over()
    assert said in refused(lambda: daemon.change(verb, "a", 1, BOB))


def test_unknown_job_is_an_error_with_suggestion(daemon: FakeDaemon) -> None:
    daemon.submit("resnet-2", BOB)
    said = refused(lambda: daemon.change("cancel", "resnet2", requester=BOB))
    assert said == "UnknownJob: there is no job resnet2 | did you mean resnet-2? farandole jobs lists them"


def test_second_cancel_kills_job(tmp_path: Path) -> None:
    daemon = FakeDaemon(tmp_path, World(end_seconds=10.0), HOSTS, QueueSettings())
    daemon.submit("a", work=100)
    daemon.turns()
    daemon.change("cancel", "a")
    daemon.turns()
    assert daemon.world.attempts["a", 1].order == "cancel"
    daemon.change("cancel", "a")
    daemon.turns()
    assert daemon.world.attempts["a", 1].order == "kill"
    daemon.until_over()
    assert daemon.state.jobs["a"].phase is Phase.CANCELLED
    daemon.close()


def test_round_robin_gives_each_job_its_slice(tmp_path: Path) -> None:
    daemon = FakeDaemon(tmp_path, World(), hosts("h1:2"), QueueSettings(policy="rr", quantum=5.0))
    for name in "ab":
        daemon.submit(name, workers=2, work=20, checkpoint="/c")
    daemon.turns()
    phases = []
    for _ in range(4):
        phases.append("".join(name for name in "ab" if daemon.state.jobs[name].phase is Phase.RUNNING))
        daemon.world.pass_to(daemon.world.now + 5)
        daemon.turns()
    assert phases == ["a", "b", "a", "b"]
    daemon.close()


def test_old_jobs_are_forgotten(daemon: FakeDaemon) -> None:
    daemon.submit("a", BOB)
    daemon.until_over()
    assert daemon.state.old(daemon.world.now + 3600) == []
    old = daemon.state.old(daemon.world.now + 8 * 24 * 3600)
    assert [job.name for job in old] == ["a"]
    daemon.state.forget(old)
    daemon.crash()
    assert daemon.state.jobs == {}


# --- settings ------------------------------------------------------------------------------------------------------


def test_settings_are_parsed_from_texts() -> None:
    settings = changed(
        QueueSettings(),
        ["policy=rr", "quantum=600", "queue.lab=-", "queue.vision=parent=lab,weight=2,quota=8,limit=16"],
    )
    settings = changed(settings, ["user.ann=slots=4,jobs=20", "users=slots=8", "admins=ann,bob"])
    assert (settings.policy, settings.quantum, settings.admins) == ("rr", 600, ("ann", "bob"))
    assert settings.quota("ann") == Quota(4, 20) and settings.quota("eve") == Quota(8)
    rules = settings.rules([("vision", "ann")])
    assert rules.queue("vision").parent == "lab" and rules.queue("vision/ann").limit == 4
    settings = changed(settings, ["user.ann=", "queue.vision=", "policy="])
    assert settings.quota("ann") == Quota(8) and list(settings.queues) == ["lab"]
    assert settings.policy == QueueSettings().policy


def test_adaptive_policy_respects_user_quota_and_queue_limit(tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    settings = changed(QueueSettings(), ["policy=adaptive", "user.ann=slots=2", "queue.vision=limit=1"])
    daemon = FakeDaemon(tmp_path, World(), hosts("h1:4,h2:4"), settings)
    for name, queue, requester in (
        ("a", "default", ANN),
        ("b", "default", ANN),
        ("c", "vision", BOB),
        ("d", "vision", BOB),
    ):
        daemon.submit(name, work=100.0, workers="1:8", queue=queue, requester=requester, duration=100.0)
    daemon.turns()
    has = {name: count(job.slots) for name, job in daemon.state.jobs.items()}
    assert has["a"] + has["b"] == 2 and sorted((has["c"], has["d"])) == [0, 1]
    waiting = "c" if has["c"] == 0 else "d"
    assert daemon.state.reasons[waiting] == "waits: queue vision has 1 slots, and its limit is 1"
    daemon.close()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("polcy=rr", "there is no setting polcy (hint: did you mean policy?"),
        ("policy=ffcfs", "there is no policy ffcfs (hint: did you mean fcfs?"),
        ("quantum=soon", "quantum: 'soon' is not a number of seconds"),
        ("quantum=0", "quantum: 0 s is not a valid time"),
        ("keep=inf", "keep: 'inf' is not a number of seconds"),
        ("restart_cost=nan", "restart_cost: 'nan' is not a number of seconds"),
        ("restart_cost=-1", "restart_cost: -1 s is not a valid time"),
        ("queue.lab=parent=lab", "queue lab is its own ancestor"),
        ("queue.vision=wieght=2", "'wieght=2'"),
        ("queue.vision=parent=lab", "its parent lab is not defined"),
        ("user.ann=slots=many", "'slots=many' is not a quota"),
        ("policy", "'policy' is not a setting and its value"),
    ],
)
def test_invalid_settings_are_refused(text: str, said: str) -> None:
    with pytest.raises(Refused) as raised:
        changed(QueueSettings(), [text])
    assert said in str(raised.value)


def test_a_quota_beyond_all_hosts_is_refused() -> None:
    with pytest.raises(Refused, match=r"queue vision: its quota of 9 exceeds the 8 slots.*hosts add"):
        changed(QueueSettings(), ["queue.vision=quota=9"], slots=8)
    settings = changed(QueueSettings(), ["queue.vision=quota=8"], slots=8)
    # Hosts have gone: nothing else is refused for that.
    assert changed(settings, ["policy=fair", "queue.speech=quota=2"], slots=4).policy == "fair"


@pytest.mark.parametrize("text", ["keep=1e308", "restart_cost=0", "quantum=0.1"])
def test_accepted_settings_survive_round_trip(text: str, tmp_path: Path) -> None:
    settings = changed(QueueSettings(), [text])
    store = QueueStore(tmp_path / "queue.db")
    store.write_settings(settings)
    assert store.settings() == settings
    store.close()


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "no host is named"), ("h1:4,h1:2", "h1"), ("h1:x", "Invalid host input"), ("h1:0", "host h1 has no slots")],
)
def test_invalid_hosts_are_refused(text: str, said: str) -> None:
    with pytest.raises(Refused) as raised:
        parse_queue_hosts(text)
    assert said in str(raised.value)


def test_repeated_cancel_request_counts_once(tmp_path: Path) -> None:
    daemon = FakeDaemon(tmp_path, World(end_seconds=10.0), HOSTS, QueueSettings())
    daemon.submit("a", work=100, checkpoint="/c")
    daemon.turns()
    for _ in range(2):
        daemon.state.change("cancel", "a", 0, ANN, daemon.world.now, "the first")
        daemon.crash()
    daemon.turns()
    assert daemon.world.attempts["a", 1].order == "cancel"
    daemon.state.change("cancel", "a", 0, ANN, daemon.world.now, "the second")
    daemon.turns()
    assert daemon.world.attempts["a", 1].order == "kill"
    daemon.close()


def test_repeated_resume_request_counts_once(daemon: FakeDaemon) -> None:
    daemon.submit("a", BOB, workers=8)
    daemon.change("suspend", "a", requester=BOB)
    for _ in range(2):
        daemon.state.change("resume", "a", 0, BOB, daemon.world.now, "the same")
    assert daemon.state.jobs["a"].phase is Phase.WAITING
