"""What `make dist` asks of the installed wheel: import, help, a certificate, a checker that accepts it and refuses a lie.

python -I tests/smoke.py            # all of it
python -I tests/smoke.py verify     # what needs no torch
"""

import gzip
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import widemargin

HERE = Path(__file__).resolve().parent
COMMAND = str(Path(sys.executable).with_name("widemargin"))


def asked(folder: str, *arguments: str, status: int = 0) -> str:
    done = subprocess.run([COMMAND, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != status:
        sys.exit(
            f"widemargin {' '.join(arguments)} ended with {done.returncode}, not {status}:\n{done.stdout}{done.stderr}"
        )
    return done.stdout


def main() -> None:
    if HERE.parent / "src" in Path(widemargin.__file__).resolve().parents:
        sys.exit("this is the source tree, not the wheel")
    with tempfile.TemporaryDirectory() as folder:
        assert "margin" in asked(folder, "--help")
        if sys.argv[1:] == ["verify"]:
            said = asked(folder, "margin", "parity:d=2,n=4", status=2)
            assert "Traceback" not in said
            with gzip.open(HERE / "verify" / "written_before.json.gz") as file:
                written = json.load(file)[0]
            (Path(folder) / "cert.json").write_text(json.dumps(written["payload"]))
            rows = [[*map(repr, x), f"{y:g}"] for x, y in zip(written["X"], written["y"])]
            names = [*(f"x{k}" for k in range(len(written["X"][0]))), "y"]
            (Path(folder) / "points.csv").write_text("\n".join(",".join(row) for row in [names, *rows]) + "\n")
            assert "verified exactly" in asked(folder, "verify", "cert.json", "points.csv")
            assert "CB-22" in asked(folder, "theorems", "CB-22")
        else:
            points = Path(folder) / "points.csv"
            points.write_text("a,b,label\n1,1,yes\n-1,-1,yes\n1,-1,no\n-1,1,no\n")
            asked(folder, "margin", "points.csv", "--save", "cert.json")
            said = asked(folder, "verify", "cert.json", "points.csv")
            assert "verified exactly" in said, said
            lie = json.loads((Path(folder) / "cert.json").read_text())
            lie["upper"] *= 0.5
            (Path(folder) / "lie.json").write_text(json.dumps(lie))
            asked(folder, "verify", "lie.json", "points.csv", status=1)
    print(f"widemargin {widemargin.__version__} from {Path(widemargin.__file__).parent}: all well")


if __name__ == "__main__":
    main()
