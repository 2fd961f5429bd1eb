"""Draw a block and a model: `python examples/block_images.py` writes the images to docs/images."""

from pathlib import Path

from normscope.cli import main

IMAGES = Path(__file__).parents[1] / "docs" / "images"

if __name__ == "__main__":
    main(["draw", "block", "--preset", "nanochat", "--svg", str(IMAGES / "block_nanochat.svg")])
    main(["draw", "model", "--preset", "gpt2", "--svg", str(IMAGES / "model_gpt2.svg")])
