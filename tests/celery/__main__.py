"""The worker of examples/celery in the situations that charge twice, each with onceproxy and without.

    .venv/bin/python tests/celery [WORD OF A SCENARIO'S NAME ...]

Through onceproxy there must be one effect each. Without it there must be more: that proves that the scenario happens at
all, and that the count would show a double charge. The binary is ONCEPROXY_BIN, or the one that cargo built last.
"""

import concurrent.futures
import pathlib
import sys
import tempfile
import time
import traceback

from processes import PATIENCE, Broker, children, end, kill
from world import World

CHARGES, MESSAGES, PAID = "/ledger/charges", "/mail/messages", "/shop/orders/order-7/paid"
ORDER = {"order": "order-7", "cents": 1999, "key": "order-7-charge"}
SCENARIOS = []


def scenario(says, counts=CHARGES):
    """Adds a scenario, with what it prints and which effects it counts."""

    def add(play):
        SCENARIOS.append((play, says, counts))
        return play

    return add


def succeeds(task):
    """Waits for the task's end and returns its result."""
    return task.get(timeout=PATIENCE)


def process_id(agent):
    """The process behind the User-Agent that the worker of the example sends."""
    return int(agent.removeprefix("tasks/"))


@scenario("a pool process killed (-9) after the charge")
def pool_process_killed(world):
    world.services.held.add((CHARGES, 1))
    world.worker()
    task = world.publish("charge", "order-7", "1999")
    kill(process_id(world.services.reached(CHARGES, 1)))
    # The charge is booked, and whoever asked for it is gone. Its answer comes when nobody listens any more.
    world.second_request(CHARGES)
    world.services.let_go.set()
    return succeeds(task)


@scenario("the whole worker killed (-9) after the charge")
def worker_killed(world):
    world.services.held.add((CHARGES, 1))
    worker = world.worker()
    task = world.publish("charge", "order-7", "1999")
    world.services.reached(CHARGES, 1)
    for pid in [worker.pid, *children(worker.pid)]:
        kill(pid)
    worker.wait()
    world.services.let_go.set()
    # Redis delivers again what was taken and never acknowledged.
    world.worker()
    return succeeds(task)


@scenario("redelivered to another worker while the first still runs")
def redelivered_while_running(world):
    world.services.held.add((CHARGES, 1))
    world.worker()
    task = world.publish("charge", "order-7", "1999")
    world.services.reached(CHARGES, 1)
    world.worker()
    world.second_request(CHARGES)
    world.services.let_go.set()
    # Both deliveries end, each with a word to the shop.
    world.services.reached(PAID, 2)
    return succeeds(task)


@scenario("the answer lost on the way back to the worker")
def answer_lost(world):
    world.lose_first_answer()
    world.worker()
    charge = succeeds(world.publish("charge", "order-7", "1999"))
    assert world.relay.lost == 1, "no answer was lost"
    return charge


@scenario("the ledger's own connection breaks after it booked")
def ledger_breaks(world):
    world.services.lost.add((CHARGES, 1))
    world.worker()
    task = world.publish("charge", "order-7", "1999")
    if not world.guarded:
        return succeeds(task)
    # Nobody can tell the worker whether it was booked, so the task ends, and a person looks into the ledger.
    failed = task.get(timeout=PATIENCE, propagate=False)
    assert type(failed).__name__ == "NeedsPerson", failed
    record, token = world.onceproxy("records", "list", "--state", "unknown").splitlines()[-1].split()[::6]
    booked = world.services.effects[CHARGES][0]["id"]
    world.onceproxy(
        *("records", "resolve", record, "--token", token, "--executed", "--status", "201"),
        *("--header", "content-type: application/json", "--body", f'{{"id": "{booked}"}}', "--note", "in the ledger"),
    )
    return succeeds(world.call("tasks.charge", **ORDER))


@scenario("an exception after the charge: the shop cannot be told")
def exception_afterwards(world):
    world.services.lost.add((PAID, 1))
    world.worker()
    charge = succeeds(world.publish("charge", "order-7", "1999"))
    assert world.services.count(PAID) == 2, "the task did not run twice"
    return charge


@scenario("the same task replayed by hand")
def replayed_by_hand(world):
    world.worker()
    first = world.publish("charge", "order-7", "1999")
    charge = succeeds(first)
    again = world.call("tasks.charge", **ORDER)
    assert again.id != first.id, "it is the same message"
    assert not world.guarded or succeeds(again) == charge, "the replay got another charge"
    return succeeds(again)


@scenario("two workers at once, with a message each")
def two_workers(world):
    world.services.held |= {(CHARGES, 1), (CHARGES, 2)}
    world.worker()
    world.worker()
    tasks = [world.publish("charge", "order-7", "1999") for _ in range(2)]
    world.services.reached(CHARGES, 1)
    world.second_request(CHARGES)
    world.services.let_go.set()
    charges = [succeeds(task) for task in tasks]
    assert not world.guarded or len(set(charges)) == 1, charges
    return charges[0]


@scenario("a receipt by mail, its answer lost", counts=MESSAGES)
def receipt_lost(world):
    world.lose_first_answer()
    world.worker()
    message = succeeds(world.publish("receipt", "order-7", "ada@example.com"))
    assert world.relay.lost == 1, "no answer was lost"
    return message


@scenario("a receipt by mail, the pool process killed (-9)", counts=MESSAGES)
def receipt_killed(world):
    world.services.held.add((MESSAGES, 1))
    world.worker()
    task = world.publish("receipt", "order-7", "ada@example.com")
    kill(process_id(world.services.reached(MESSAGES, 1)))
    world.second_request(MESSAGES)
    world.services.let_go.set()
    return succeeds(task)


class Run:
    """One scenario in one world: how many effects there were, or what went wrong."""

    def __init__(self, folder, broker, play, counts, guarded):
        self.effects, self.fault, self.logs = None, None, ""
        world = None
        try:
            folder.mkdir()
            world = World(folder, broker, guarded)
            result = play(world)
            self.effects = world.services.count(counts)
            ids = [entry["id"] for entry in world.services.effects[counts]]
            assert result in ids, f"the task's result {result} is none of {ids}"
            told = {entry["asked"]["charge"] for entry in world.services.effects.get(PAID, ())}
            assert not guarded or len(told) <= 1, f"the shop was told of {told}"
            assert not guarded or self.effects == 1, f"{self.effects} effects through onceproxy"
            assert guarded or self.effects > 1, "one effect without onceproxy too: this scenario shows nothing"
        except Exception as fault:  # Any fault is one of this scenario; the others go on.
            self.fault = "".join(traceback.format_exception(fault))
        finally:
            if world:
                world.close()
                self.logs = world.logs() if self.fault else ""


def main(words):
    chosen = [one for one in SCENARIOS if not words or any(word in one[0].__name__ for word in words)]
    if not chosen:
        sys.exit("no scenario has a name with one of these words")
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(8) as pool:
        folder = pathlib.Path(folder)
        broker = Broker(folder)
        try:
            runs = [
                [
                    pool.submit(Run, folder / f"{play.__name__}-{guarded}", broker.url(), play, counts, guarded)
                    for guarded in (True, False)
                ]
                for play, _, counts in chosen
            ]
            failed = report(chosen, runs)
        finally:
            end(broker.process)
    print(f"{len(chosen)} scenarios, {failed} failed, {time.monotonic() - begun:.0f} s")
    return 1 if failed else 0


def report(chosen, runs):
    """Prints a line for each scenario as it ends, and returns how many failed."""
    print(f"{'':58}  with onceproxy  without", flush=True)
    failed = 0
    for (play, says, counts), pair in zip(chosen, runs):
        guarded, bare = (run.result() for run in pair)
        unit = counts.rsplit("/", 1)[1]
        shown = [f"{run.effects if run.effects is not None else '?'} {unit}" for run in (guarded, bare)]
        print(f"{says:58}  {shown[0]:14}  {shown[1]}", flush=True)
        for run in (guarded, bare):
            if run.fault:
                failed += 1
                print(f"{play.__name__}:\n{run.fault}{run.logs}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
