"""A proxy between clients and a broker that knows Kafka's frames: it holds, repeats, drops, cuts and edits."""

from eos.testing.proxy.frames import ApiKey, Frame
from eos.testing.proxy.hold_proxy import HoldProxy
from eos.testing.proxy.proxy_rules import Edge, Hold, Outcome, ends_with

__all__ = ["ApiKey", "Edge", "Frame", "Hold", "HoldProxy", "Outcome", "ends_with"]
