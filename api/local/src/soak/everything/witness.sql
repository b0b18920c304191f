-- Triggers that look at who leads a loop and who writes for it: see witness.rs. Processes of the loops say who they are
-- with the setting `soak.process` of their connections. Leases change hands under the lock that orders all changes, so
-- what is seen here is exact.
create table soak.leaders (name text collate "C" primary key, epoch bigint not null, process text, held boolean not null);
create table soak.terms (at timestamptz not null, name text not null, epoch bigint not null, process text,
    held boolean not null);
create table soak.stale (at timestamptz not null, rv bigint not null, of_loop text not null, writer text, leader text);

create function soak.lease_changed() returns trigger language plpgsql as $$
declare
    process_ text := current_setting('soak.process', true);
begin
    insert into soak.terms values (clock_timestamp(), new.name, new.epoch, process_, new.held);
    insert into soak.leaders values (new.name, new.epoch, process_, new.held)
        on conflict (name) do update set epoch = excluded.epoch, process = excluded.process, held = excluded.held;
    return null;
end $$;
create trigger soak_leases after insert or update on horchestra.lease_epochs
    for each row execute function soak.lease_changed();

create function soak.loop_written() returns trigger language plpgsql as $$
declare
    loop_ text := substr(new.who, length('system:loop:') + 1);
    process_ text := current_setting('soak.process', true);
    leader record;
begin
    perform nextval('soak.checked');
    select * into leader from soak.leaders l where l.name = loop_;
    if leader.process is distinct from process_ or leader.held is not true then
        insert into soak.stale values (clock_timestamp(), new.rv, loop_, process_,
            case when leader.held then leader.process end);
    end if;
    return null;
end $$;
create trigger soak_loops after insert on horchestra.events
    for each row when (new.who like 'system:loop:%') execute function soak.loop_written();
