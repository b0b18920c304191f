//! Private PostgreSQL, template databases and free ports for tests.
