-- The first schema. A later change is a new numbered file; this one stays as it is.

CREATE TABLE meta (
  name TEXT PRIMARY KEY,
  value TEXT NOT NULL
) STRICT;

CREATE TABLE instances (
  id TEXT PRIMARY KEY,
  pid INTEGER NOT NULL,
  start_time INTEGER NOT NULL,
  boot_id TEXT NOT NULL,
  version TEXT NOT NULL,
  started REAL NOT NULL,
  ended REAL
) STRICT;

-- `damaged`: the row was rebuilt from what could be read; the original lies in quarantine.
CREATE TABLE sessions (
  generation INTEGER PRIMARY KEY,
  deployment TEXT NOT NULL,
  replica INTEGER NOT NULL,
  model TEXT NOT NULL,
  engine TEXT NOT NULL,
  installation TEXT NOT NULL,
  unit_kind TEXT NOT NULL,
  load_key TEXT NOT NULL,
  phase TEXT NOT NULL,
  life_dir TEXT NOT NULL,
  reason TEXT,
  created REAL NOT NULL,
  ended REAL,
  instance TEXT NOT NULL,
  damaged INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX sessions_open ON sessions (generation) WHERE phase <> 'gone';

-- Apart from their session on purpose: a damaged session row still holds what stands here.
CREATE TABLE reservations (
  generation INTEGER NOT NULL,
  pool TEXT NOT NULL,
  bytes INTEGER NOT NULL,
  PRIMARY KEY (generation, pool)
) STRICT;

CREATE TABLE units (
  generation INTEGER PRIMARY KEY,
  kind TEXT NOT NULL,
  guardian TEXT,
  main TEXT,
  members TEXT NOT NULL,
  runtime_id TEXT,
  life_dir TEXT,
  state TEXT NOT NULL,
  confirmed_by TEXT
) STRICT;

CREATE TABLE unit_processes (
  generation INTEGER NOT NULL,
  pid INTEGER NOT NULL,
  start_time INTEGER NOT NULL,
  boot_id TEXT NOT NULL,
  PRIMARY KEY (generation, pid, start_time, boot_id)
) STRICT;

CREATE TABLE acts (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  generation INTEGER NOT NULL,
  instance TEXT NOT NULL,
  verb TEXT NOT NULL,
  intended_at REAL NOT NULL,
  outcome TEXT,
  outcome_at REAL
) STRICT;
CREATE INDEX acts_of_generation ON acts (generation);

CREATE TABLE attempts (
  generation INTEGER PRIMARY KEY,
  deployment TEXT NOT NULL,
  replica INTEGER NOT NULL,
  body TEXT NOT NULL
) STRICT;
CREATE INDEX attempts_of_replica ON attempts (deployment, replica, generation);

CREATE TABLE holds (
  deployment TEXT NOT NULL,
  replica INTEGER NOT NULL,
  cause TEXT NOT NULL,
  code TEXT NOT NULL,
  message TEXT NOT NULL,
  failures INTEGER NOT NULL,
  until REAL,
  since REAL NOT NULL,
  trial_s REAL NOT NULL,
  PRIMARY KEY (deployment, replica)
) STRICT;

CREATE TABLE residue (
  generation INTEGER NOT NULL,
  what TEXT NOT NULL,
  path TEXT NOT NULL,
  since REAL NOT NULL,
  PRIMARY KEY (generation, what, path)
) STRICT;

CREATE TABLE operations (
  operation_id TEXT PRIMARY KEY,
  kind TEXT NOT NULL,
  subject TEXT NOT NULL,
  state TEXT NOT NULL,
  body TEXT NOT NULL,
  created REAL NOT NULL,
  ended REAL
) STRICT;
CREATE INDEX operations_ended ON operations (ended) WHERE ended IS NOT NULL;

CREATE TABLE idempotency_keys (
  caller TEXT NOT NULL,
  route TEXT NOT NULL,
  key TEXT NOT NULL,
  body_digest TEXT NOT NULL,
  status INTEGER NOT NULL,
  answer BLOB NOT NULL,
  created REAL NOT NULL,
  operation_id TEXT,
  PRIMARY KEY (caller, route, key)
) STRICT;
CREATE INDEX idempotency_created ON idempotency_keys (created);

CREATE TABLE events (
  n INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  at REAL NOT NULL,
  body TEXT NOT NULL
) STRICT;
CREATE INDEX events_at ON events (at);

CREATE TABLE quarantine (
  n INTEGER PRIMARY KEY AUTOINCREMENT,
  source TEXT NOT NULL,
  generation INTEGER,
  content TEXT NOT NULL,
  why TEXT NOT NULL,
  at REAL NOT NULL
) STRICT;
