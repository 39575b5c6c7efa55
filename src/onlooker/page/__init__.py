"""A recording, or a program with its proof, as one HTML file that needs nothing but a browser.

Values become data (``entry``, ``pictures``), and the data become a page (``page``): a template, a
style sheet and a script, which are files of this folder. The script draws from the data alone.
"""
