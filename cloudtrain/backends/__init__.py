"""The targets by name. A backend's module is imported when it is first used, so listing them costs nothing."""
