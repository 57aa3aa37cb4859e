-- What the operator sells and runs. Global: no row belongs to a tenant. Each
-- body has the keys of the catalogue's YAML document. Plans stand with the
-- tenants and prices with the receipts; `weir apply` changes all of them in one
-- transaction and then announces it on the channel weir_catalogue.

-- +goose Up

CREATE TABLE bands (
    name     text    PRIMARY KEY,
    priority integer NOT NULL UNIQUE
);

CREATE TABLE pools (
    name text  PRIMARY KEY,
    body jsonb NOT NULL
);

CREATE TABLE endpoints (
    pool text  NOT NULL REFERENCES pools (name) ON DELETE CASCADE,
    id   text  NOT NULL,
    body jsonb NOT NULL,
    PRIMARY KEY (pool, id)
);

CREATE TABLE models (
    name text  PRIMARY KEY,
    body jsonb NOT NULL
);

-- Every name that callers may use, the models' own included: what makes sure
-- that no alias means two models.
CREATE TABLE model_names (
    name  text PRIMARY KEY,
    model text NOT NULL REFERENCES models (name) ON DELETE CASCADE
);

GRANT SELECT, INSERT, UPDATE, DELETE ON bands, pools, endpoints, models, model_names TO weir_app;
