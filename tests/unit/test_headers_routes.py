"""Routing: the id that is authorised is the id that is routed, and ports lead to the workspace alone."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workspaces.proxy.routes import Form, Host, NoSuchPortError, own_origin_netloc, parse_host, port_endpoint, route_host, route_path

ID = "3b1f8a52-0d6f-4f33-9f0e-2f8f2f3f4f5f"
OTHER = "00000000-0000-4000-8000-000000000000"


@pytest.mark.parametrize(
    ("path", "rest", "port"),
    [
        (f"/w/{ID}", "", None),
        (f"/w/{ID}/", "/", None),
        (f"/w/{ID}/a/b?", "/a/b?", None),
        (f"/w/{ID}/../{OTHER}/", f"/../{OTHER}/", None),
        (f"/w/{ID}/%2e%2e/{OTHER}/", f"/%2e%2e/{OTHER}/", None),
        (f"/w/{ID}/ports/3000/x", "/x", 3000),
        (f"/w/{ID}/ports/3000", "", 3000),
        (f"/w/{ID}/ports/65535/", "/", 65535),
        (f"/w/{ID}/ports/", "/ports/", None),
        (f"/w/{ID}/ports/03000/", "/ports/03000/", None),
        (f"/w/{ID}/ports/0/", "/ports/0/", None),
        (f"/w/{ID}/ports/3000x/", "/ports/3000x/", None),
    ],
)
def test_path_form_reads_one_id_and_passes_the_rest_as_it_is(path: str, rest: str, port: int | None) -> None:
    target = route_path(path.encode())
    assert target is not None
    assert (target.workspace_id, target.path, target.port, target.form) == (UUID(ID), rest.encode(), port, Form.PATH)


@pytest.mark.parametrize(
    "path",
    [
        f"/w/{ID.upper()}/",
        f"/w//{ID}/",
        f"//w/{ID}/",
        f"/w%2f{ID}/",
        f"/w/{ID}%2f",
        f"/w/{ID}x",
        f"\\w\\{ID}",
        f"/W/{ID}/",
        f"/w/{ID.replace('-', '')}/",
        f"/./w/{ID}/",
        f"/w/{ID}/ports/65536/",
        f"/w/{ID}/ports/99999/",
        "/w/",
        "/",
    ],
)
def test_anything_but_the_canonical_form_is_not_a_workspace(path: str) -> None:
    assert route_path(path.encode()) is None


@given(st.binary(max_size=60))
def test_no_path_is_routed_to_an_id_it_does_not_start_with(tail: bytes) -> None:
    target = route_path(f"/w/{ID}/".encode() + tail)
    assert target is None or target.workspace_id == UUID(ID)


@pytest.mark.parametrize(
    ("name", "port"),
    [(f"{ID}.localhost", None), (f"8080-{ID}.localhost", 8080)],
)
def test_own_origin_reads_id_and_port_from_the_first_label(name: str, port: int | None) -> None:
    target = route_host(Host(name, 8000), b"/x", domain="localhost")
    assert target is not None
    assert (target.workspace_id, target.port, target.path, target.prefix) == (UUID(ID), port, b"/x", b"")
    assert own_origin_netloc(target, domain="localhost", port=8000) == f"{name}:8000"


@pytest.mark.parametrize(
    "name", [f"x.{ID}.localhost", f"0-{ID}.localhost", f"70000-{ID}.localhost", f"{ID}x.localhost", f"-{ID}.localhost", "www.localhost"]
)
def test_other_names_below_the_domain_are_not_workspaces(name: str) -> None:
    assert route_host(Host(name, None), b"/", domain="localhost") is None


@pytest.mark.parametrize("value", [b"", b"a b", b"host:port", b"host:99999", b"host:0", b"user@host", b"host/path", b"h\xc3\xb6st", b"a,b"])
def test_host_headers_that_are_not_plain_names_are_refused(value: bytes) -> None:
    assert parse_host(value) is None


def test_ports_are_reached_only_where_the_workspace_has_an_address_of_its_own() -> None:
    assert port_endpoint("http://172.18.0.2:8080", 3000) == "http://172.18.0.2:3000"
    assert port_endpoint("http://127.0.0.1:32768#172.18.0.2", 3000) == "http://172.18.0.2:3000"


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://127.0.0.1:32768",
        "http://[::1]:32768",
        "unix:/run/ide.sock",
        "http://169.254.169.254:80",
        "http://127.0.0.1:1#169.254.169.254",
        "http://127.0.0.1:1#127.0.0.1",
        "http://0.0.0.0:80",
        "http://224.0.0.1:80",
        "http://8.8.8.8:80",
        "http://metadata:80",
        "",
    ],
)
def test_ports_of_the_machine_of_metadata_services_and_of_strangers_are_out_of_reach(endpoint: str) -> None:
    with pytest.raises(NoSuchPortError):
        port_endpoint(endpoint, 80)
