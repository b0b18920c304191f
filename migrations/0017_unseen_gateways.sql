-- Gateways whose connections nobody sees. The name of a gateway is safe from others while the server has a connection of
-- its process (0013). Behind a pooler that lends connections for single transactions it may have none at a moment, or
-- one that says another name by then, and lives. So a process says whether its connections can be seen; of one whose
-- cannot be, the name is free when its term has ended and not before.

-- As in 0013. application_ is the application_name of all connections of the process that asks, null: they cannot be
-- seen. It is believed only if this very connection shows it.
create function horchestra.name_gateway(gateway_ uuid, name_ text, application_ text) returns boolean
language plpgsql volatile as $$
declare
    bearer record;
begin
    if exists (select 1 from horchestra.gateways g where g.id = gateway_ and g.name = name_) then
        return true;
    end if;
    select g.id, g.until, g.application into bearer from horchestra.gateways g where g.name = name_ for update;
    if found then
        if bearer.until > clock_timestamp() and (bearer.application is null
                or exists (select 1 from pg_stat_activity a where a.application_name = bearer.application)) then
            return false;
        end if;
        update horchestra.gateways g set name = null, until = least(g.until, clock_timestamp())
            where g.id = bearer.id;
    end if;
    update horchestra.gateways g set name = name_, application = (select a.application_name from pg_stat_activity a
            where a.pid = pg_backend_pid() and a.application_name = application_ and application_ <> '')
        where g.id = gateway_;
    return found;
exception when unique_violation then
    return false;
end $$;

-- Programs from before this migration.
create or replace function horchestra.name_gateway(gateway_ uuid, name_ text) returns boolean
language sql volatile as $$
    select horchestra.name_gateway($1, $2, current_setting('application_name'))
$$;
