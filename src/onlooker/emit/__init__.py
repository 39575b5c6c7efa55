"""Settings for other runtimes, from plans, contracts and traffic: text, and the sizes behind it."""
