CREATE TABLE IF NOT EXISTS idem_records ( -- idem schema 1
    operation   TEXT NOT NULL,
    key         TEXT NOT NULL,
    state       TEXT NOT NULL,
    attempt     INTEGER NOT NULL,
    owner       BLOB,
    origin      TEXT,
    leased_at   INTEGER, -- as all times here: milliseconds since 1970, UTC
    lease_until INTEGER,
    valid_until INTEGER,
    expires_at  INTEGER NOT NULL,
    fingerprint TEXT,
    is_error    INTEGER NOT NULL DEFAULT 0,
    codec       TEXT,
    outcome     BLOB,
    questions   INTEGER NOT NULL DEFAULT 0,
    took_over   TEXT,
    revision    INTEGER NOT NULL,
    sweep_at    INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (operation, key)
);
CREATE INDEX IF NOT EXISTS idem_records_sweep_at ON idem_records (sweep_at);
