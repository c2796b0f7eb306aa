"""The part that all front ends share: the native engine, the session, groups, handles and requests."""
