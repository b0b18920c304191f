-- Gateways that come back. A gateway may have a name, which outlives its process; whoever starts under a name ends
-- the term of the process that bore it before, if that is gone, so that its sessions can be claimed at once instead
-- of when the term has run out. It is gone when the server has no connection of it left: the kernel closes those of
-- a process that died, whatever killed it, and keeps those of one that merely stands still.
alter table horchestra.gateways
    add column name        text collate "C",
    -- The application_name of the connections of the process that bears the name.
    add column application text;
create unique index gateways_name on horchestra.gateways (name) where name is not null;

-- Gives a gateway its name; false: another process bears it and is alive, or may be. Nothing that a guard reads is
-- changed here. Two that ask at the same time wait for each other's row, or fall over the index.
create function horchestra.name_gateway(gateway_ uuid, name_ text) returns boolean
language plpgsql volatile as $$
declare
    bearer record;
begin
    if exists (select 1 from horchestra.gateways g where g.id = gateway_ and g.name = name_) then
        return true;
    end if;
    select g.id, g.until, g.application into bearer from horchestra.gateways g where g.name = name_ for update;
    if found then
        if bearer.until > clock_timestamp()
           and exists (select 1 from pg_stat_activity a where a.application_name = bearer.application) then
            return false;
        end if;
        update horchestra.gateways g set name = null, until = least(g.until, clock_timestamp())
            where g.id = bearer.id;
    end if;
    update horchestra.gateways g set name = name_, application = current_setting('application_name')
        where g.id = gateway_;
    return found;
exception when unique_violation then
    return false;
end $$;

-- Client certificates that are not believed any more though their authority is: those of a name that began to be valid
-- until a moment, or one by its fingerprint (SHA-256, lower-case hex).
create table horchestra.denied_certificates (
    name          text collate "C" not null default '',
    fingerprint   text collate "C" not null default '',
    begun_until   timestamptz,
    at            timestamptz not null default clock_timestamp(),
    reason        text not null default '',
    primary key (name, fingerprint),
    check ((name = '') <> (fingerprint = '')),
    check ((name = '') = (begun_until is null))
);
