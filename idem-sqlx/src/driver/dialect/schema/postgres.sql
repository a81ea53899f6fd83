CREATE TABLE IF NOT EXISTS idem_records (
    operation   text COLLATE "C" NOT NULL,
    key         text COLLATE "C" NOT NULL,
    state       text NOT NULL,
    attempt     bigint NOT NULL,
    owner       bytea,
    origin      text,
    leased_at   timestamptz,
    lease_until timestamptz,
    valid_until timestamptz,
    expires_at  timestamptz NOT NULL,
    fingerprint text,
    is_error    boolean NOT NULL DEFAULT false,
    codec       text,
    outcome     bytea,
    questions   bigint NOT NULL DEFAULT 0,
    took_over   text,
    waited      boolean NOT NULL DEFAULT false,
    revision    bigint NOT NULL,
    sweep_at    timestamptz NOT NULL DEFAULT 'epoch',
    PRIMARY KEY (operation, key)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05);
CREATE INDEX IF NOT EXISTS idem_records_sweep_at ON idem_records (sweep_at);
COMMENT ON TABLE idem_records IS 'idem schema 1';
