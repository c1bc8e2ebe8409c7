"""Metrics of a running federation, for Prometheus; needs `pip install 'fedmix[prometheus]'`."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fedmix.core.errors import BadInput
from fedmix.runs.run import Listener


@contextmanager
def exposed(address: str, listen: Listener) -> Iterator[Listener]:
    """Yield a listener that also serves every number of the last round at http://ADDRESS/metrics.

    Args:
        address: HOST:PORT; 127.0.0.1 lets this machine alone read. Empty: `listen` is yielded.
        listen: Called with the metrics of each round.

    Raises:
        BadInput: The address is no HOST:PORT or cannot be used, or prometheus-client is missing.
    """
    if not address:
        yield listen
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise BadInput(f"metrics-address={address!r:.80} is no HOST:PORT, such as 127.0.0.1:9464")
    try:
        from prometheus_client import CollectorRegistry, Gauge, start_http_server
    except ImportError as error:
        raise BadInput(
            "metrics-address needs the package prometheus-client; run: pip install "
            "'fedmix[prometheus]'"
        ) from error
    registry, gauges = CollectorRegistry(), dict[str, Gauge]()
    try:
        server, thread = start_http_server(int(port), host, registry)
    except OSError as error:
        raise BadInput(f"metrics-address={address} cannot be used ({error.strerror})") from error

    def both(line: dict[str, Any]) -> None:
        listen(line)
        for name, value in line.items():
            if value is not None:
                if name not in gauges:
                    about = f"{name} of the last round, as in metrics.jsonl"
                    known_as = "fedmix_" + re.sub(r"\W", "_", name, flags=re.ASCII)
                    gauges[name] = Gauge(known_as, about, registry=registry)
                gauges[name].set(value)

    try:
        yield both
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
