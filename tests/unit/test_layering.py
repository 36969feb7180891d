"""Who may import whom, and that tests test this checkout."""

import ast
import importlib
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parent.parent.parent
PACKAGES = ("hw", "sw", "sim")


def imports(path):
    """Modules of this project that a file imports, at any depth."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.split(".")[0] in PACKAGES}


def files(package):
    return sorted((ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_are_those_of_this_checkout(package):
    assert pathlib.Path(importlib.import_module(package).__file__).parent == ROOT / package


def test_hardware_imports_neither_software_nor_simulation():
    for path in files("hw"):
        assert not {name for name in imports(path) if not name.startswith("hw")}, path


def test_the_contract_imports_nothing_but_itself():
    for path in files("hw/spec"):
        assert not {name for name in imports(path) if not name.startswith("hw.spec")}, path


def test_software_sees_only_the_contract():
    for path in files("sw"):
        outside = {name for name in imports(path) if not name.startswith(("sw", "hw.spec")) and name != "hw"}
        assert not outside, path


def test_the_golden_model_sees_only_the_graph_and_the_arithmetic():
    allowed = ("sw.graph", "sw.operators", "hw.spec.numerics", "hw.spec", "sw")
    seen = imports(ROOT / "sim" / "golden.py")
    assert {name for name in seen if not name.startswith(("sw.graph", "sw.operators", "hw.spec.numerics"))} <= set(
        allowed
    )


def test_no_tests_folder_hides_a_package():
    assert not list((ROOT / "tests").rglob("__init__.py"))
    assert not [path for path in (ROOT / "tests").iterdir() if path.name in PACKAGES]
