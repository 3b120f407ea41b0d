"""The shop: decides what is to happen once, gives it a key, and publishes the task.

    python publish.py charge order-7 1999
    python publish.py receipt order-7 ada@example.com

The key names the operation: "the charge of order 7". It is made here, where the order is decided, and goes with the
message. Every delivery, every retry and every replay by hand carries the same one. A second charge of the same order that
is meant (a reorder, an instalment) is another operation and needs another name.
"""

import sys

import tasks

what, order, argument = sys.argv[1:]
if what == "charge":
    published = tasks.charge.delay(order=order, cents=int(argument), key=f"{order}-charge")
elif what == "receipt":
    published = tasks.send_receipt.delay(order=order, to=argument, key=f"{order}-receipt")
else:
    sys.exit(f"there is no task for {what!r}: write charge or receipt")
print(published.id)
