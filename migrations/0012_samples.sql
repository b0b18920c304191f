-- What nodes measured last, one row for each node and everything on it. Unlogged: rows are replaced every few
-- seconds and worth nothing after two minutes, so a crash of the database may take them. Rows stay small enough to be
-- updated within their page, which keeps the table from growing; `at` has no index for the same reason.
create unlogged table horchestra.samples (
    node text collate "C" primary key,
    at   timestamptz not null,
    body bytea       not null
) with (fillfactor = 50);
-- Compressed, and in the row as long as it fits.
alter table horchestra.samples alter column body set storage main;

do $$
begin
    if 'lz4' = any (select unnest(enumvals) from pg_settings where name = 'default_toast_compression') then
        alter table horchestra.samples alter column body set compression lz4;
    end if;
end $$;
