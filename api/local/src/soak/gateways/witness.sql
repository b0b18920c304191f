-- Triggers that look at who writes for which node: see witness.rs.
create schema soak;
-- Who serves a node, and since when.
create table soak.owners (node text collate "C" primary key, application text, since timestamptz not null);
create table soak.claims (at timestamptz not null, node text not null, epoch bigint not null, application text not null,
    taken_over boolean not null);
create table soak.strays (at timestamptz not null, what text not null, node text not null, writer text not null, owner text);
create sequence soak.checked;

create function soak.session_changed() returns trigger language plpgsql as $$
begin
    if tg_op = 'DELETE' then
        update soak.owners set application = null, since = clock_timestamp() where node = old.node;
        return null;
    end if;
    insert into soak.claims values (clock_timestamp(), new.node, new.epoch, current_setting('application_name'),
        tg_op = 'UPDATE' and old.gateway <> new.gateway);
    insert into soak.owners values (new.node, current_setting('application_name'), clock_timestamp())
        on conflict (node) do update set application = excluded.application, since = excluded.since;
    return null;
end $$;
create trigger soak_sessions after insert or update or delete on horchestra.node_sessions
    for each row execute function soak.session_changed();

create function soak.check_writer(what text, of_node text, ordered boolean) returns void language plpgsql as $$
declare
    owner record;
begin
    perform nextval('soak.checked');
    select * into owner from soak.owners o where o.node = of_node;
    if owner.application is distinct from current_setting('application_name')
       and (ordered or owner.since is null or statement_timestamp() > owner.since + interval '1 second') then
        insert into soak.strays
            values (clock_timestamp(), what, of_node, current_setting('application_name'), owner.application);
    end if;
end $$;

create function soak.row_written() returns trigger language plpgsql as $$
begin
    perform soak.check_writer(tg_argv[0], new.node, false);
    return null;
end $$;
create trigger soak_heartbeats after insert or update on horchestra.heartbeats
    for each row execute function soak.row_written('heartbeat');
create trigger soak_samples after insert or update on horchestra.samples
    for each row execute function soak.row_written('samples');
create trigger soak_records after insert or update on horchestra.push_records
    for each row execute function soak.row_written('record');

create function soak.leased() returns trigger language plpgsql as $$
begin
    insert into soak.strays values (clock_timestamp(), 'address ' || host(new.address), new.owner::text,
        current_setting('application_name'), 'released ' || old.released_at);
    return null;
end $$;
create trigger soak_addresses after update on horchestra.address_leases for each row
    when (new.owner is not null and (old.owner is not null and old.owner <> new.owner
          or old.released_at > clock_timestamp() - interval '590 seconds'))
    execute function soak.leased();

create function soak.logged() returns trigger language plpgsql as $$
begin
    perform soak.check_writer('report', substr(new.who, length('system:node:') + 1), true);
    return null;
end $$;
create trigger soak_log after insert on horchestra.events
    for each row when (new.who like 'system:node:%') execute function soak.logged();
