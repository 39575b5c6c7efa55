"""A program as a folder: written atomically, read with distrust, no pickle anywhere."""
