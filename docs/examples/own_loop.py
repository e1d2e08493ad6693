"""A consume-transform-produce loop of one's own: python docs/examples/own_loop.py HOST:PORT INPUT OUTPUT."""

import signal
import sys

from eos import Session, Settings

servers, source, sink = sys.argv[1:]
settings = Settings.load(
    overrides={
        "kafka.bootstrap_servers": servers,
        "group": f"relay-{source}",
        "input.start": "earliest",  # for the first time: afterwards the committed offsets say where to go on
    }
)

with Session(settings, app="relay", inputs=[source], outputs=[sink]) as session:
    signal.signal(signal.SIGTERM, lambda *_: session.stop())
    for batch in session:
        with session.transaction(batch) as txn:
            for record in batch:
                txn.produce(sink, record.value, key=record.key)
