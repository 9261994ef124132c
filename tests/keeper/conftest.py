"""Keepers in this process, and clients of them."""

import pytest
from events import EVENT_S
from keeper_copies import SECRET

from planner.keeper import handshake
from planner.keeper.client import KeeperClient
from planner.keeper.server import Keeper


@pytest.fixture(autouse=True)
def _patiently(monkeypatch):
    """Whoever answers is waited for."""
    monkeypatch.setattr(handshake, "CONNECT_S", EVENT_S)


@pytest.fixture
def make_keeper():
    """Starts keepers, each on its own port."""
    keepers = []

    def make(bound_bytes=1 << 20, **settings):
        keepers.append(Keeper(bound_bytes=bound_bytes, **{"secret": SECRET, **settings}))
        return keepers[-1]

    yield make
    for keeper in keepers:
        keeper.close()


@pytest.fixture
def make_client():
    """Connects to a keeper, as a node's worker."""
    clients = []

    def make(keeper, node="n0", **settings):
        clients.append(KeeperClient(keeper.address_on(node), SECRET, **settings))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def keeper(make_keeper):
    return make_keeper()


@pytest.fixture
def client(make_client, keeper):
    return make_client(keeper)
