"""Recording -> Plan, in pure Python: forms, a table of sizes, relations, names, sizes."""
