"""What clients send: records, exposition text, OTLP, inbox, forwarded readings, heartbeats."""
