"""The images in which steps run: written, built, and read as far as can be without pulling them."""
