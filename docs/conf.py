"""Sphinx: the pages of this folder, and the reference from docstrings; `make docs` builds them."""

from __future__ import annotations

import grpo_ext

project = "grpo_ext"
release = grpo_ext.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"grpo_ext {release}"
html_show_sourcelink = False
html_show_copyright = False

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
autodoc_inherit_docstrings = False  # not those of TRL's and transformers' methods
autodoc_default_options = {"members": True, "undoc-members": False}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
suppress_warnings = ["ref.python"]  # fields of one name in several records
default_role = "code"  # docstrings write `name`, as Markdown does
