"""Parquet files of public data sets: from a folder that you name, else the Hugging Face hub."""

import errno
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from fedmix.core.errors import BadInput, DataError, first_line
from fedmix.core.files import write_whole
from fedmix.data.cache import location

if TYPE_CHECKING:
    from huggingface_hub import HfApi

REVISION = "refs/convert/parquet"  # the branch in which the hub keeps every data set as parquet


def parquet(
    repo: str,
    config: str,
    split: str,
    root: str | Path | None = None,
    cache: str | Path | None = None,
) -> list[Path]:
    """List the files <repo>/<config>/<split>/*.parquet of a data set.

    They are looked for in `root` or $FEDMIX_DATA if either is set, and downloaded otherwise. Raises
    DataError if there are none or the download fails.
    """
    named = root or os.environ.get("FEDMIX_DATA")
    if not named:
        return _download(
            repo, config, split, location(cache) / "hub" / repo / config / f"{split}.json"
        )
    folder = Path(named).expanduser() / repo / config / split
    files = sorted(folder.glob("*.parquet"))
    if not files:
        setting = "leave out --data (`root`, in Python)" if root else "unset FEDMIX_DATA"
        raise DataError(
            f"there are no parquet files in {folder}; put them there, or {setting} to download them"
        )
    return files


def _download(repo: str, config: str, split: str, record: Path) -> list[Path]:
    """Download the files that the hub lists.

    `record` then holds their names and sizes, so that later starts need no network.
    """
    if known := _recorded(record):
        return known
    try:
        from huggingface_hub import HfApi
        from huggingface_hub.hf_api import RepoFile
    except ImportError as error:
        raise BadInput(f"to download {repo}, run: pip install 'fedmix[data]'") from error
    # public data needs no token
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"), token=False)
    try:
        tree = api.list_repo_tree(repo, f"{config}/{split}", revision=REVISION, repo_type="dataset")
        listed = {
            e.path: e.size for e in tree if isinstance(e, RepoFile) and e.path.endswith(".parquet")
        }
        if not listed:
            raise FileNotFoundError("there are no parquet files")
        files = [_whole(api, repo, path, size) for path, size in sorted(listed.items())]
        record.parent.mkdir(parents=True, exist_ok=True)
        write_whole(record, json.dumps({str(file): file.stat().st_size for file in files}).encode())
    except Exception as error:  # of three HTTP libraries, depending on the client's version
        full = isinstance(error, OSError) and error.errno == errno.ENOSPC
        advice = (
            "make room or set HF_HOME to another folder"
            if full
            else "check the connection and start again"
        )
        raise DataError(
            f"cannot download {repo} ({config}/{split}) from {api.endpoint}: {first_line(error)}; "
            f"{advice}, or set FEDMIX_DATA to a folder that holds {repo}/{config}/{split}/*.parquet"
        ) from error
    return files


def _recorded(record: Path) -> list[Path]:
    """The files of an earlier download if all exist with their full size, else none."""
    try:
        sizes = {Path(path): size for path, size in json.loads(record.read_text()).items()}
        return (
            sorted(sizes)
            if all(path.stat().st_size == size for path, size in sizes.items())
            else []
        )
    except (OSError, ValueError, AttributeError, RecursionError):
        return []


def _whole(api: "HfApi", repo: str, path: str, size: int) -> Path:
    """Download one file and check its size; try twice.

    A connection may break, and a copy in the hub's cache may be too short.
    """
    reason, short = Exception(), False
    for _ in range(2):
        try:
            local = api.hf_hub_download(
                repo, path, repo_type="dataset", revision=REVISION, force_download=short
            )
        except Exception as error:  # of any HTTP library; `_download` reports it
            reason = error
            continue
        if Path(local).stat().st_size == size:
            return Path(local)
        reason, short = OSError(f"{path} is not of {size} bytes"), True
    raise reason
