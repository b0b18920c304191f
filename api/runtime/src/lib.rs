//! Arguments, telemetry, health, shutdown and supervision.
