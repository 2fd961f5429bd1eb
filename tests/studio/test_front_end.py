"""The sources of the page: a complete lockfile without addresses, a catalog with the same keys in both languages."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MESSAGES = ROOT / "src" / "normscope" / "messages"
NAMES = sorted(path.name for path in (MESSAGES / "en").glob("*.json"))


def test_lockfile_is_complete_and_has_no_addresses() -> None:
    lock = json.loads((ROOT / "web" / "package-lock.json").read_text())["packages"]
    assert not [name for name, package in lock.items() if "resolved" in package]
    assert not [name for name, package in lock.items() if name and "integrity" not in package]
    missing = [
        f"{owner} needs {name}"
        for owner, package in lock.items()
        for name in package.get("optionalDependencies", {})
        if f"node_modules/{name}" not in lock and f"{owner}/node_modules/{name}" not in lock
    ]
    assert missing == []


def test_sources_name_no_other_host() -> None:
    sources = [*(ROOT / "web" / "src").rglob("*.ts*"), *(ROOT / "web").glob("*.html"), *(ROOT / "web").glob("*.ts")]
    addresses = {
        address
        for path in sources
        for address in re.findall(r"https?://[^\s\"'`)>]+", path.read_text(encoding="utf-8"))
        if "www.w3.org" not in address  # XML namespaces
    }
    assert addresses == set()


def test_both_languages_have_the_same_files() -> None:
    assert sorted(path.name for path in (MESSAGES / "zh").glob("*.json")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_messages_match(name: str) -> None:
    en, zh = (json.loads((MESSAGES / language / name).read_text(encoding="utf-8")) for language in ("en", "zh"))
    assert en.keys() == zh.keys()
    for key, text in en.items():
        assert sorted(re.findall(r"\{(\w+)\}", text)) == sorted(re.findall(r"\{(\w+)\}", zh[key])), key
        assert zh[key].strip(), key


def test_no_message_is_unused() -> None:
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "web" / "src").rglob("*.ts*"))
    keys = [key for name in NAMES for key in json.loads((MESSAGES / "en" / name).read_text(encoding="utf-8"))]
    built = [re.escape(prefix) for prefix in re.findall(r"`([\w.]+\.)\$\{", code)]  # t(`lab.${name}`)
    unused = [key for key in keys if f'"{key}"' not in code and not any(re.match(prefix, key) for prefix in built)]
    assert unused == []
