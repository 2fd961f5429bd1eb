"""The public names of the package: every one can be imported, and no submodule hides one."""

import importlib
import pkgutil
import types

import normscope


def submodules() -> list[str]:
    found = pkgutil.walk_packages(normscope.__path__, "normscope.")
    return [module.name for module in found if not module.name.endswith("__main__")]


def test_every_public_name_can_be_imported() -> None:
    assert len(normscope.__all__) == len(set(normscope.__all__)) > 60
    for name in normscope.__all__:
        assert getattr(normscope, name) is not None
    assert sorted(normscope.__all__) == dir(normscope)


def test_no_submodule_hides_a_public_name() -> None:
    """Importing `normscope.x` sets the attribute `x` of the package, so no module may have a public name."""
    for module in submodules():
        importlib.import_module(module)
    for name in normscope.__all__:
        value = getattr(normscope, name)
        assert not isinstance(value, types.ModuleType), name
        assert callable(value) or name == "__version__"
        assert importlib.util.find_spec(f"normscope.{name}") is None, name


def test_the_stub_has_a_form_that_the_loader_reads() -> None:
    stub = pkgutil.get_data("normscope", "__init__.pyi")
    assert stub is not None
    lines = [line.split() for line in stub.decode().splitlines() if "import" in line and not line.startswith('"')]
    assert all(line[0] == "from" and line[3] == line[5] and line[4] == "as" for line in lines)
    assert [line[3] for line in lines] == normscope.__all__
