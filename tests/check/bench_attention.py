#!/usr/bin/env python3
"""What of tools/bench-attention and its peers needs no GPU: SHAPEs that `engine doctor` takes, ratios, the table.

usage: bench_attention.py ENGINE
"""
import importlib.machinery
import importlib.util
import os
import pathlib
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.dont_write_bytecode = True


def load(path):
    loader = importlib.machinery.SourceFileLoader(path.stem.replace("-", "_"), str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    sys.modules[loader.name] = module
    loader.exec_module(module)
    return module


bench = load(ROOT / "tools" / "bench-attention")
peers = load(ROOT / "tools" / "bench" / "attention_torch.py")
ENGINE = sys.argv.pop(1) if len(sys.argv) > 1 else ""


def contest(case, which, flops, **kernels):
    """As `engine doctor --json` says it; the first kernels are chosen."""
    return {"shape": case.shape, "pass": which, "flops": flops,
            "kernels": [{"name": name, "ms": ms, "chosen": number == 0} if isinstance(ms, float) else
                        {"name": name, "why_not": ms} for number, (name, ms) in enumerate(kernels.items())]}


class Shapes(unittest.TestCase):
    def test_engine_takes_them(self):
        shapes = [case.shape for case in bench.CASES]
        found = subprocess.run([ENGINE, "doctor", "--attention", *shapes], capture_output=True, text=True, check=False,
                               env=dict(os.environ, CUDA_VISIBLE_DEVICES=""))
        self.assertEqual(found.returncode, 3, found.stderr)  # there is no GPU, but nothing is wrong with a SHAPE
        self.assertEqual(len(set(shapes)), len(shapes))  # a doctor's report is known by its shape

    def test_cases(self):
        names = [case.name for case in bench.CASES]
        self.assertEqual(len(set(names)), len(names))
        for case in bench.CASES:
            self.assertTrue(not case.base or case.base in names, case.name)
            self.assertLessEqual(set(case.peers), set(bench.PEER_NAMES), case.name)
            shape = peers.parse_shape(case.shape)
            self.assertEqual(sum(shape["documents"]) or shape["length"], shape["length"], case.name)
            for peer in case.peers:
                self.assertEqual(peers.why_not(peer, shape), "", case.name)

    def test_parse_shape(self):
        shape = peers.parse_shape("batch=2,length=10,heads=4,kv_heads=2,head=64,alibi,softcap=2.5,documents=3+7")
        self.assertEqual((shape["batch"], shape["keys"], shape["kv_heads"], shape["value_head"]), (2, 10, 2, 64))
        self.assertEqual((shape["alibi"], shape["softcap"], shape["documents"], shape["mask"]), (1, 2.5, (3, 7), "causal"))
        self.assertEqual(peers.document_numbers((2, 3)), [0, 0, 1, 1, 1])

    def test_why_not(self):
        shape = peers.parse_shape("length=10,heads=4,head=64,dropout=0.1")
        self.assertEqual(peers.why_not("flex", shape), "FlexAttention has no dropout")
        self.assertEqual(peers.why_not("cudnn", shape), "")
        self.assertIn("windows", peers.why_not("flash", peers.parse_shape("length=10,heads=4,head=64,window=5")))

    def test_alibi_slopes(self):
        self.assertEqual(peers.alibi_slopes(8), [2.0 ** -(h + 1) for h in range(8)])
        self.assertEqual(peers.alibi_slopes(12)[8:], [2.0 ** -0.5, 2.0 ** -1.5, 2.0 ** -2.5, 2.0 ** -3.5])


class Ratios(unittest.TestCase):
    def setUp(self):
        by_name = {case.name: case for case in bench.CASES}
        self.cases = [by_name[name] for name in ("causal-64-8k", "window-64-8k", "documents-even")]
        self.results = {case.name: bench.empty() for case in self.cases}
        causal, window, documents = self.cases
        bench.add_ours(self.results, {"contests": [
            contest(causal, "forward", 1e12, own=2.0, cuDNN=1.95),
            contest(causal, "backward", 2.5e12, own=5.0, **{"cuDNN, bits repeat": 7.0, "cuDNN, bits vary": 4.0}),
            contest(window, "forward", 0.2e12, own=0.5, cuDNN="attention within a window"),
            contest(documents, "forward", 0.1e12, own=0.25)]})
        bench.add_peers(self.results, 'RESULT {"case": "window-64-8k", "peer": "flex", "pass": "forward", "ms": 0.8}\n'
                        'some words\nRESULT {"case": "documents-even", "peer": "flex", "pass": "forward", "why_not": "no"}\n')

    def test_ratios(self):
        causal, window, documents = self.cases
        self.assertAlmostEqual(bench.ratios(causal, "forward", self.results)["cuDNN"], 2.0 / 1.95)
        self.assertTrue(bench.reached(causal, "forward", bench.ratios(causal, "forward", self.results)))
        backward = bench.ratios(causal, "backward", self.results)
        self.assertAlmostEqual(backward["cuDNN, bits vary"], 1.25)
        self.assertAlmostEqual(backward["cuDNN, bits repeat"], 5 / 7)
        self.assertFalse(bench.reached(causal, "backward", backward))
        by_pair = bench.ratios(window, "forward", self.results)
        self.assertAlmostEqual(by_pair["base a pair"], 0.5 / (2.0 * 0.2))
        self.assertAlmostEqual(by_pair["Flex"], 0.625)
        self.assertTrue(bench.reached(window, "forward", by_pair))
        self.assertIsNone(bench.ratios(window, "backward", self.results)["Flex"])
        self.assertEqual(bench.ratios(documents, "forward", self.results), {"ms": 0.25, "Flex": None})
        self.assertIsNone(bench.reached(documents, "forward", bench.ratios(documents, "forward", self.results)))

    def test_table(self):
        lines = bench.table(self.cases, self.results).splitlines()
        self.assertIn("| own | cuDNN | cuDNN, bits repeat | cuDNN, bits vary | Flex | ratio | must | reached |", lines[0])
        self.assertEqual({line.count("|") for line in lines if line.startswith("|")}, {lines[0].count("|")})
        self.assertEqual(lines[2], "| causal-64-8k | forward | 2.000 | own | 500 | 2.000 | 1.950 | – | – | – | "
                         "1.026 × cuDNN | ≤ 1.05 × cuDNN | yes |")
        self.assertIn("| no |", lines[3])
        self.assertIn("1.250 × causal-64-8k a pair, 0.625 × Flex", lines[4])
        self.assertIn("window-64-8k, forward: cuDNN cannot: attention within a window", lines)
        self.assertIn("documents-even, forward: Flex cannot: no", lines)

    def test_options(self):
        options = bench.parse_options(["--cases", "causal-128-?k,sinks-*", "--sides", "peer"])
        self.assertEqual([case.name for case in options.cases],
                         [*(f"causal-128-{k}k" for k in (1, 2, 4, 8)), "sinks-64-8k", "sinks-128-8k"])


if __name__ == "__main__":
    unittest.main()
