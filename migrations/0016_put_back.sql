-- Data that was put back while nothing ran, or was taken to another server: nobody is there who knows which revisions
-- were given out after it. Clients do, and would go on from one of them as soon as others had grown up to it.

-- A revision that is above all that were given out by now, whoever gave them out: the clock says, since no history gets
-- 65,536 of them a second. (The same data may be put back more than once, so a fixed step would lead to one place twice.)
create function horchestra.beyond_all() returns bigint
language sql volatile as $$
    select greatest(horchestra.head(), floor(extract(epoch from clock_timestamp() - timestamptz '2026-01-01 00:00:00+00'))::bigint * 65536)
$$;

-- As in 0009, and a new epoch begins with the hold: no revision of what may be lost is given out again, and who comes
-- with one is told that it is gone.
create or replace function horchestra.settle_home(vouches boolean, patient boolean) returns boolean
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    system_   text;
    database_ text;
    timeline_ int;
    home      horchestra.state;
    unproven  boolean := false;
begin
    select c.system_identifier::text into system_ from pg_control_system() c;
    select d.oid::text into database_ from pg_database d where d.datname = current_database();
    timeline_ := ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int;
    select s.* into home from horchestra.state s;
    if (home.home_system, home.home_database, home.home_timeline)
            is not distinct from (system_, database_, timeline_) then
        return true;
    end if;
    perform pg_advisory_xact_lock(7239181146252901);
    select s.* into home from horchestra.state s;
    if vouches or home.home_system is null then
        null;
    elsif (home.home_system, home.home_database) is distinct from (system_, database_) then
        perform horchestra.engage_hold('', 'DatabaseReplaced', 'this data was in another database before');
        unproven := true;
    elsif home.home_timeline is distinct from timeline_ then
        if patient then
            return false;
        end if;
        perform horchestra.engage_hold('', 'HistoryUnproven', format('the server went from timeline %s to %s, and '
            || 'nobody who was there before says that nothing was lost', home.home_timeline, timeline_));
        unproven := true;
    end if;
    if unproven then
        perform horchestra.begin_epoch(home.epoch, horchestra.beyond_all());
    end if;
    update horchestra.state set home_system = system_, home_database = database_, home_timeline = timeline_;
    return true;
end $$;
