# %% [markdown]
# # First steps
# Open this file in an editor that knows `# %%` cells, or run it: `python examples/first_steps.py`.
# Everything is written to a temporary folder. It takes less than a minute.

# %% Where the runs go
import tempfile
from pathlib import Path
from typing import Any

import fedsieve

folder = Path(tempfile.mkdtemp(prefix="fedsieve-"))
settings: dict[str, Any] = {
    "clients": 4,
    "rounds": 2,
    "epochs": 1,
    "partition": "dirichlet",
    "noise": "symmetric",
    "noise.rates": "ramp",
    "noise.high": 0.8,
}

# %% The data: what each client holds, and how many of its labels are wrong
# The truth is for evaluation; no method ever sees it.
federation, truth = fedsieve.federation(**settings)
for client, given in enumerate(federation.given):
    correct = truth.correct(client, given)
    assert correct is not None, "a simulation knows which labels are right"
    wrong = 1 - correct.mean()
    print(f"client {client}: {len(given)} samples, {wrong:.0%} wrong labels")

# %% One run
result = fedsieve.run(**settings, method="symce", out=str(folder / "symce"), quiet=True)
print(f"accuracy {result['test_accuracy']:.3f}, model {result['model_sha256'][:12]}")
for row in result["rows"]:
    print(f"round {row['round']}: accuracy {row['test_accuracy']:.3f}, {row['bytes_up']:,} bytes sent to the server")

# %% What left each client
for item in result["disclosure"]:
    if item["direction"] == "up":
        print(f"{item['part']}: {item['name']} ({item['bytes']:,} bytes)")

# %% Several runs: lists multiply, and finished runs are not repeated
comparison = fedsieve.compare(**settings, method=["fedavg", "oracle"], out=str(folder / "comparison"), quiet=True)
print(comparison["table"])

# %% A run from its folder, at any later time
again = fedsieve.load(folder / "symce")
assert again["model_sha256"] == result["model_sha256"]

# %% New samples
predictions = fedsieve.predict(folder / "symce", federation.test_images[:5])
for prediction, label in zip(predictions["rows"], truth.test, strict=False):
    true_name = federation.class_names[label]
    print(f"{prediction['name']} ({prediction['probability']:.2f}), in truth {true_name}")

# %% The pages to open in a browser
print(folder / "symce" / "report.html")
print(folder / "comparison" / "report.html")
