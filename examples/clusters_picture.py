"""A scikit-learn estimator on clusters in the plane, its accuracy on new points, and a picture of the decision.

    python examples/clusters_picture.py [--n 40] [--out clusters.png]

The estimator carries its certificate: `margin_` is reached, and no network of norm 1 reaches more than `upper`.
"""

import argparse

from sklearn.model_selection import train_test_split

import widemargin as wm
from widemargin import plots
from widemargin.optima.estimators import MaxMarginClassifier

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--n", type=int, default=40, help="points, half of them for the test [40]")
parser.add_argument("--out", default="clusters.png", help="the picture [clusters.png]")
options = parser.parse_args()

data = wm.data.clusters(n=options.n, k=3, seed=0)
X, X_test, y, y_test = train_test_split(data.X, data.y, test_size=0.5, random_state=0, stratify=data.y)

models = {}
for space in ("f1", "f2", "linear"):
    models[space] = model = MaxMarginClassifier(space, time_limit=20, bias=True).fit(X, y)
    kind = "soft" if model.soft_ else "hard"
    print(f"{space:6}  {kind} margin {model.margin_:.6f}, test accuracy {model.score(X_test, y_test):.2f}")
    print(f"        {model.certificate_}")

figure = plots.decision(models["f1"].certificate_, wm.Dataset(X, y, name=data.name))
figure.savefig(options.out)
print(f"picture written to {options.out}")
