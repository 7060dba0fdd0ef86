"""Measure one encoder in a fresh process: `python peers.py JSON`, where JSON holds the fields of `Task`.

The process loads the documents, then the tokenizer, encodes a few words (tables and compiled code that are made on first use are
not what is measured), and encodes the documents once: the cold pass, with every cache empty. A second pass is warm. The result
is one JSON line. Each library is called in the way that is fastest for it; what that is stands at its class.
"""

import dataclasses
import gc
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import corpus
import models

MIB = 1 << 20


class Task(NamedTuple):
    """What one process does. `seconds` bounds the cold pass: a slow library encodes the first documents only, and once."""

    peer: str
    model: str
    texts: str
    tokenizers: str
    megabytes: float
    threads: int
    seconds: float


@dataclasses.dataclass
class Pass:
    """One time over the documents, or the first of them; `text_bytes` is UTF-8."""

    text_bytes: int = 0
    is_whole: bool = True
    tokens: int = 0
    cpu_seconds: float = 0.0
    wall_seconds: float = 0.0


class Peer:
    """An encoder under test: `texts` turns documents into what it takes, `encode` makes ids and returns their number."""

    batch_bytes = MIB

    def __init__(self, model: models.Model, threads: int) -> None:
        self.threads = threads

    def texts(self, documents: list[bytes]) -> Any:
        return [document.decode() for document in documents]

    def encode(self, texts: Any) -> int:
        raise NotImplementedError

    def encode_all(self, batches: Sequence[tuple[int, Any]], seconds: float) -> Pass:
        """Encode the batches, each with its size, until they or the seconds end."""
        done = Pass()
        cpu, wall = time.process_time(), time.perf_counter()
        for size, texts in batches:
            done.tokens += self.encode(texts)
            done.text_bytes += size
            if time.perf_counter() - wall > seconds:
                done.is_whole = False
                break
        done.cpu_seconds, done.wall_seconds = time.process_time() - cpu, time.perf_counter() - wall
        return done


class LtPreprocess(Peer):
    """One encoder a thread; the threads take batches of 1 MiB, as in the tool."""

    def __init__(self, model: models.Model, threads: int) -> None:
        from lt_preprocess.tokenizers import loading
        from lt_shared.tokenizers import tokenizer_files

        super().__init__(model, threads)
        loaded = loading.load(tokenizer_files.find(model.native))
        self.encoders = [loaded.new_encoder() for _ in range(threads)]

    def texts(self, documents: list[bytes]) -> Any:
        from lt_preprocess.texts import Texts

        return Texts.from_list(documents)

    def encode(self, texts: Any) -> int:
        return len(self.encoders[0].encode(texts)[0])

    def encode_all(self, batches: Sequence[tuple[int, Any]], seconds: float) -> Pass:
        if self.threads == 1:
            return super().encode_all(batches, seconds)
        import threading

        waiting = iter(batches)
        total = Pass()
        lock = threading.Lock()

        def work(encoder: Any) -> None:
            tokens = 0
            while time.perf_counter() - wall <= seconds:
                with lock:
                    total.tokens += tokens
                    size, texts = next(waiting, (0, None))
                    total.text_bytes += size
                if texts is None:
                    return
                tokens = len(encoder.encode(texts)[0])
            total.is_whole = False

        threads = [threading.Thread(target=work, args=(encoder,)) for encoder in self.encoders]
        cpu, wall = time.process_time(), time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        total.cpu_seconds, total.wall_seconds = time.process_time() - cpu, time.perf_counter() - wall
        return total


class Gigatoken(Peer):
    """`encode_batch` of bytes, 2 MiB a thread (larger is slower). `parallel=False` keeps it on the calling thread."""

    def __init__(self, model: models.Model, threads: int) -> None:
        import gigatoken

        super().__init__(model, threads)
        self.batch_bytes = 2 * MIB * threads
        self.tokenizer = gigatoken.Tokenizer(model.tokenizer_json)

    def texts(self, documents: list[bytes]) -> Any:
        return documents

    def encode(self, texts: Any) -> int:
        return len(self.tokenizer.encode_batch(texts, parallel=self.threads > 1).layout.content)


class Tiktoken(Peer):
    """`encode_ordinary`, and `encode_ordinary_batch` on several threads."""

    def __init__(self, model: models.Model, threads: int) -> None:
        super().__init__(model, threads)
        assert model.tiktoken is not None
        self.batch_bytes = threads * MIB
        self.normal_form = model.normal_form
        self.encoding = model.tiktoken()

    def encode(self, texts: Any) -> int:
        if self.normal_form:
            import unicodedata

            texts = [unicodedata.normalize(self.normal_form, text) for text in texts]
        if self.threads == 1:
            return sum(len(self.encoding.encode_ordinary(text)) for text in texts)
        return sum(map(len, self.encoding.encode_ordinary_batch(texts, num_threads=self.threads)))


class SentencePiece(Peer):
    """`encode` of a list, which has its own threads."""

    def __init__(self, model: models.Model, threads: int) -> None:
        import sentencepiece

        super().__init__(model, threads)
        self.batch_bytes = threads * MIB
        self.processor = sentencepiece.SentencePieceProcessor(model_file=str(model.native))

    def encode(self, texts: Any) -> int:
        return sum(map(len, self.processor.encode(texts, out_type=int, num_threads=self.threads)))


class HuggingFace(Peer):
    """`encode_batch_fast`, which leaves the offsets out."""

    def __init__(self, model: models.Model, threads: int) -> None:
        import tokenizers

        super().__init__(model, threads)
        self.batch_bytes = threads * MIB
        self.tokenizer = tokenizers.Tokenizer.from_file(str(model.tokenizer_json))

    def encode(self, texts: Any) -> int:
        return sum(map(len, self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)))


PEERS: dict[str, type[Peer]] = {
    "lt-preprocess": LtPreprocess,
    "gigatoken": Gigatoken,
    "tiktoken": Tiktoken,
    "sentencepiece": SentencePiece,
    "HF tokenizers": HuggingFace,
}


def environment(threads: int) -> dict[str, str]:
    """What makes the libraries with a pool of threads use this many."""
    parallel = "true" if threads > 1 else "false"
    return os.environ | {"RAYON_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": parallel}


def batches(documents: Iterable[bytes], size_bytes: int) -> Iterator[tuple[int, list[bytes]]]:
    """Documents in order, in batches of at least `size_bytes` (the last may be smaller), each with its size."""
    batch: list[bytes] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document)
        if size >= size_bytes:
            yield size, batch
            batch, size = [], 0
    if batch:
        yield size, batch


def resident_bytes(field: str) -> int:
    """Memory of this process: "VmRSS" now, "VmHWM" at most since `forget_peak`."""
    status = Path("/proc/self/status").read_text()
    return int(status.split(field + ":")[1].split()[0]) * 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def measure(task: Task) -> dict[str, Any]:
    texts = list(corpus.load_texts(Path(task.texts), task.megabytes))
    gc.collect()
    forget_peak()
    before = resident_bytes("VmRSS")
    peer = PEERS[task.peer](models.models(Path(task.tokenizers))[task.model], task.threads)
    peer.encode(peer.texts([b"warm up"]))
    loaded = resident_bytes("VmRSS")
    inputs = [(size, peer.texts(batch)) for size, batch in batches(texts, peer.batch_bytes)]
    gc.collect()
    gc.disable()
    prepared = resident_bytes("VmRSS")
    forget_peak()
    cold = peer.encode_all(inputs, task.seconds)
    peak = loaded - before + resident_bytes("VmHWM") - prepared
    warm = peer.encode_all(inputs, task.seconds) if cold.is_whole else None
    return {"peak_bytes": peak, "cold": dataclasses.asdict(cold), "warm": warm and dataclasses.asdict(warm)}


def main() -> None:
    print(json.dumps(measure(Task(**json.loads(sys.argv[1])))))


if __name__ == "__main__":
    main()
