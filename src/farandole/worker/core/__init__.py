"""What every front end shares: the native engine, the session, groups, handles, errors and settings."""
