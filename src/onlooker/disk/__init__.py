"""Files and folders that are whole or not there, and JSON documents that are read with distrust."""
