"""conf/ and a team's own folders composed by Hydra into one tree of plain values; every error is one line."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from pipeline.records.failure import InputError

Tree = dict[str, object]
"""A mapping of a configuration: plain values under names."""

CONF = Path(__file__).resolve().parent.parent / "conf"
"""Beside the package, wherever the command was started."""


def composed(overrides: Sequence[str], config_name: str) -> Tree:
    """The tree of the primary file ``config_name`` and its groups, with ``overrides``, resolved.

    ``config_name`` is the name of a file of conf/, or the path of a YAML file elsewhere, whose groups are looked up
    in its folder, then in conf/. ``hydra.searchpath`` adds folders of groups; relative ones are taken from the working
    directory. Raises InputError naming the key, the group or the file, and what there is to choose from.
    """
    is_path = "/" in config_name or config_name.endswith((".yaml", ".yml"))
    primary = Path(config_name).expanduser().absolute() if is_path else CONF / f"{config_name}.yaml"
    if not primary.is_file():
        named = ", ".join(options(CONF)) or f"none in {CONF}"
        raise InputError(f"{config_name}: no such configuration; give the path of a YAML file, or one of: {named}")
    lines, folders = _search_path(overrides, primary)
    try:
        # Hydra only warns of a folder on the search path that does not exist.
        with initialize_config_dir(str(primary.parent), version_base="1.3"), warnings.catch_warnings():
            warnings.filterwarnings("error", message="provider=.* is not available", category=UserWarning)
            config = compose(primary.stem, lines)
            tree = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except UserWarning as error:
        folder = str(error).partition("path=")[2].removesuffix(" is not available.")
        raise InputError(f"hydra.searchpath: no such folder {folder!r}") from None
    except (HydraException, OmegaConfBaseException, yaml.YAMLError, OSError, ValueError) as error:
        raise InputError(without_credentials(_said(error, [primary.parent, *folders]))) from None
    if not isinstance(tree, dict):
        raise InputError(f"{primary}: must be a mapping of settings")
    return _checked(tree, "")


def options(folder: Path) -> list[str]:
    """The names of the YAML files of a folder, sorted."""
    return sorted({file.stem for file in folder.glob("*.y*ml")})


def without_credentials(text: str) -> str:
    """``text`` without user and password of the addresses in it, and without values of parameters named secret."""
    text = re.sub(r"(?<=://)(?:[^/@\s:]*:\S*@|[^/\s]*@)", "", text)
    return re.sub(r"(?i)([?&][^=&\s]*(?:passw|pwd|token|secret|key|credential)[^=&\s]*=)[^&\s]*", r"\1***", text)


def _search_path(overrides: Sequence[str], primary: Path) -> tuple[list[str], list[Path]]:
    """Overrides with one ``hydra.searchpath`` that holds every folder asked for, and those folders."""
    lines: list[str] = []
    asked: list[str] | None = None
    for line in overrides:
        try:
            override = OverridesParser.create().parse_override(line)
        except HydraException:
            shown = without_credentials(line)
            raise InputError(f"{shown!r}: not an override; write key=value, +key=value, ~key or group=[a,b]") from None
        if override.is_sweep_override():
            raise InputError(f"{without_credentials(line)}: one sweep takes lists; write {override.key_or_group}=[a,b]")
        if override.get_key_element() == "hydra.searchpath":
            asked = _folder_list(override.value())
        else:
            lines.append(line)
    if asked is None and primary.parent != CONF:
        try:
            own = OmegaConf.load(primary)
        except (yaml.YAMLError, OmegaConfBaseException, OSError, ValueError) as error:
            raise InputError(_said(error, [])) from None
        if not isinstance(own, DictConfig):
            raise InputError(f"{primary}: must be a mapping of settings")
        asked = _folder_list(OmegaConf.select(own, "hydra.searchpath", default=[]))
    folders = [*(asked or ()), *([str(CONF)] if primary.parent != CONF else ())]
    if folders:
        quoted = ",".join("'" + folder.replace("\\", "\\\\").replace("'", "\\'") + "'" for folder in folders)
        lines.append(f"hydra.searchpath=[{quoted}]")
    return lines, [Path(folder.removeprefix("file://")) for folder in folders]


def _folder_list(value: object) -> list[str]:
    plain = OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
    if not isinstance(plain, list) or not all(isinstance(folder, str) for folder in plain):
        raise InputError("hydra.searchpath: must be a list of folders, as in hydra.searchpath=[/path/to/conf]")
    return [str(folder) for folder in plain]


def _said(error: Exception, folders: Sequence[Path]) -> str:
    """One line for an error of Hydra, OmegaConf or YAML."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, name = error.missing_cfg_file.rpartition("/")
        known = sorted({option for folder in folders for option in options(folder / group)})
        return f"{group or 'defaults'}: no option {name!r}; choose from: {', '.join(known) or 'nothing'}"
    if isinstance(error, MissingMandatoryValue):
        if str(error.full_key).endswith("]"):  # a value that must be set has a key; one in a list was meant as text
            return f"{error.full_key}: cannot be '???', by which YAML files here mark a value that must be set"
        return f"{error.full_key}: must be set"
    cause = error.__cause__
    if isinstance(cause, OmegaConfBaseException) and isinstance(cause.parent_node, DictConfig):
        if "is not in struct" in str(cause):
            known = [str(key) for key in cause.parent_node if key != "hydra"]
            return (
                f"{cause.full_key}: unknown key; known there: {', '.join(known) or 'nothing'}"
                " (+key=value adds one that a file leaves out)"
            )
        return f"{cause.full_key}: {_first_line(cause)}"
    if isinstance(error, OmegaConfBaseException) and error.full_key:
        return f"{error.full_key}: {_first_line(error)}"
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"{error.problem_mark.name}:{error.problem_mark.line + 1}: {error.problem}"
    return f"configuration: {_first_line(error)}"


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _checked(tree: Mapping[Any, object], key: str) -> Tree:
    """``tree`` when every key in it is text and every number finite."""
    checked: Tree = {}
    for name, value in tree.items():
        if not isinstance(name, str):
            raise InputError(
                f"{key or 'the configuration'}: {str(name).lower()} is not a name; YAML reads bare off, no, on and yes"
                " as false and true, and digits as numbers: quote it, or choose another (off cannot be a name)"
            )
        checked[name] = _checked_value(value, f"{key}.{name}" if key else name)
    return checked


def _checked_value(value: object, key: str) -> object:
    if isinstance(value, dict):
        return _checked(value, key)
    if isinstance(value, list):
        return [_checked_value(item, f"{key}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{key}: must be a finite number, not {value}")
    return value
