"""The status of a pipeline as HTML: a file, or pages that a job serves while it runs.

- pure: `markup` (elements with escaped texts), `style` (colours, style sheet), `facts` (what a page shows),
  `page` (facts to HTML)
- writing: `write_page` replaces a file
"""
